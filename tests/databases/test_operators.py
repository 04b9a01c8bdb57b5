"""Every operator and module that PyTorch tests itself: right or refused, by every method."""

from __future__ import annotations

import collections
from collections.abc import Iterable

import pytest
import torch

import uaprop as ua
from uaprop.registry import RULES

pytest.importorskip("expecttest", reason="torch's databases of operators need it")

from .calls import MODULES, OPERATORS, module_calls, operator_calls
from .sweep import METHODS, Call, judge

# ``python -m tests.databases`` takes all of them.
FEW, MANY = 2, 6


def check(calls: Iterable[Call], fewer: Iterable[Call]) -> None:
    found = [(call.name, "diagonal", judge(call, "diagonal")) for call in calls]
    for call in fewer:
        found += [(call.name, m, judge(call, m)) for m in METHODS if m != "diagonal"]
    bad = [row for row in found if row[2].outcome in ("wrong", "crash")]
    assert not bad, "\n".join(
        f"{name} {method}: {v.outcome}, {v.detail}" for name, method, v in bad
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_right_or_refused(name: str) -> None:
    check(operator_calls(name, MANY), operator_calls(name, FEW))


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_right_or_refused(name: str) -> None:
    check(module_calls(name, 1 if name.endswith(".training") else FEW), module_calls(name, 1))


def _outcome(function: object, method: str = "diagonal", point: torch.Tensor | None = None) -> str:
    x = torch.linspace(-1, 2, 6, dtype=torch.float64).view(2, 3) if point is None else point
    return judge(Call("", function, x), method).outcome  # type: ignore[arg-type]


def test_the_sweep_tells_right_from_wrong() -> None:
    def shrunk(x: object) -> object:
        y = torch.sin(x)  # type: ignore[arg-type]
        return ua.Gaussian(y.loc, y.var / 4) if isinstance(y, ua.Gaussian) else y

    def shifted(x: object) -> object:
        by = 3 * x.std.amax() if isinstance(x, ua.Gaussian) else 0.0
        return torch.sin(x + by)  # type: ignore[arg-type, operator]

    def forgotten(x: object) -> object:
        return torch.sin(x.loc if isinstance(x, ua.Gaussian) else x)  # type: ignore[arg-type]

    assert _outcome(torch.sin) == "right"
    assert _outcome(torch.special.bessel_j0) == "refused"
    assert [_outcome(f) for f in (shrunk, shifted, forgotten)] == ["wrong"] * 3


def test_the_sweep_notices_a_rule_that_crashes() -> None:
    def mistaken(input: object) -> object:
        raise IndexError("a mistake")

    known = dict(RULES)
    ua.rule(torch.special.bessel_j1)(mistaken)
    try:
        assert _outcome(torch.special.bessel_j1) == "crash"
    finally:
        RULES.clear()
        RULES.update(known)


def test_the_sweep_looks_at_most_calls() -> None:
    names = ("add", "nn.functional.conv2d", "nn.functional.gelu", "softmax.with_dtype", "sort")
    outcomes = collections.Counter(
        judge(call, "diagonal").outcome for name in names for call in operator_calls(name, 4)
    )
    assert outcomes["right"] > 0.8 * outcomes.total()
