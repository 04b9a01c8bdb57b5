"""Scale equivariance: ``f(c x) = c^d f(x)`` holds for mean and standard deviation, from 1e-6 to 1e6.

A threshold that is an absolute number, or an intermediate result out of the range of float32, shows here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua

from .cases import CASES, Case
from .cases.homogeneity import BY_KIND, DEGREES, NONE, Degree, degree_of
from .test_correlated import one_source_each
from .test_unequal import unequal

SETS_DTYPE = {"float", "double", "half", "bfloat16", "type_as", "to"}
FACTORS = (1e-6, 1e-3, 1e3, 1e6)


def test_every_case_says_its_degree_or_that_it_has_none() -> None:
    said = set(NONE) | set(DEGREES)
    silent = {case.name for case in CASES if case.kind not in BY_KIND} - said
    assert not silent, f"no entry in tests/cases/homogeneity.py: {sorted(silent)}"
    assert not set(NONE) & set(DEGREES)


homogeneous = pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.rule not in SETS_DTYPE and c.name not in NONE],
    ids=lambda case: f"{case.name}-{case.kind}",
)


def run(case: Case, degree: Degree, x: Any, c: float, representation: str) -> Any:
    def call(x: Any) -> Any:
        return case.call(x) if degree.scaled is None else degree.scaled(x, c)

    if representation == "full":
        return ua.propagate(call, x, method="full")
    return call((one_source_each(x) if representation == "factors" else x).clone())


def offset(case: Case, x: ua.Gaussian) -> Tensor | float:
    """``f(0)`` of a map that is homogeneous but for a constant."""
    if case.kind == "noise" or case.name in DEGREES:
        return 0.0
    constant: Tensor = case.call(torch.zeros_like(x.loc))
    return constant


@homogeneous
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("representation", ["diagonal", "factors", "full"])
def test_outputs_scale_with_the_input(case: Case, representation: str, dtype: torch.dtype) -> None:
    degree = degree_of(case)
    assert degree is not None
    given = unequal(case.shape, 0.1, 1.0)

    def scaled(c: float) -> tuple[Tensor, Tensor]:
        x = ua.Gaussian((c * given.loc).to(dtype), (c * c * given.cov.var).to(dtype))
        y = run(case, degree, x, c, representation)
        assert bool((y.var >= 0).all())
        unit = c**degree.value
        return (y.loc - offset(case, x)).double() / unit, y.std.double() / unit

    # variances of c^{2d} must be numbers of the dtype
    factors = [c for c in FACTORS if 1e-30 <= c ** (2 * degree.value) <= 1e30]
    try:
        mean, std = scaled(1.0)
    except ua.UnsupportedOperation:  # for one scale as for another
        for c in factors:
            with pytest.raises(ua.UnsupportedOperation):
                scaled(c)
        return
    rounding = 1e-9 if dtype == torch.float64 else 1e-3
    size = float((mean.abs() + std).max()) if mean.numel() else 0.0
    for c in factors:
        found, spread = scaled(c)
        # a constant that is added takes the digits of what is small beside it
        lost = rounding * max(1.0, c**-degree.value) if case.name not in DEGREES else rounding
        torch.testing.assert_close(found, mean, rtol=rounding, atol=lost * max(size, 1.0))
        torch.testing.assert_close(spread, std, rtol=rounding, atol=1e-3 * rounding * size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "method", ["diagonal", "full", "sketch", "adjoint", "hybrid", "linear", "samples", "auto"]
)
def test_networks_without_biases_scale_in_every_method(method: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 8, bias=False), nn.LeakyReLU(), nn.Linear(8, 5, bias=False),
    ).to(dtype)  # fmt: skip
    given = unequal((3, 1, 8, 8), 0.03, 0.3)

    def scaled(c: float) -> ua.Gaussian:
        x = ua.Gaussian((c * given.loc).to(dtype), (c * c * given.cov.var).to(dtype))
        y: ua.Gaussian = ua.propagate(model, x, method=method)
        return y

    one = scaled(1.0)
    rounding = 1e-7 if dtype == torch.float64 else 1e-3
    for c in FACTORS:
        y = scaled(c)
        torch.testing.assert_close(y.loc / c, one.loc, rtol=rounding, atol=rounding)
        torch.testing.assert_close(y.std / c, one.std, rtol=rounding, atol=0)
