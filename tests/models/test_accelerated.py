"""Kernels for accelerators, with the processor in the part of one: the same numbers as without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import uaprop as ua
from uaprop.numerics import accelerated, clipped, compiled, rectified


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process, in which CPU tensors go the way of an accelerator's."""
    monkeypatch.setattr(compiled, "is_on_accelerator", lambda tensor: True)
    for name, value in (("_kernels", {}), ("_work", {}), ("_tried", set()), ("_failed", False)):
        monkeypatch.setattr(accelerated, name, value)
    with ua.fused(None):
        yield
    torch.compiler.reset()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(accelerated.log, "handlers", [handler])
    return found


def points(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = 4 * torch.randn(shape, generator=generator)
    return mean, torch.exp(6 * torch.randn(shape, generator=generator))


def test_values_and_gradients(told: list[str]) -> None:
    mean, var = points(50, 40)
    weights = torch.randn(2, 50, 40, generator=torch.Generator().manual_seed(1))

    def run() -> list[Tensor]:
        m, v = mean.clone().requires_grad_(), var.clone().requires_grad_()
        result = rectified.relu.marginal(m, v)
        sum((w * t).sum() for w, t in zip(weights, result, strict=True)).backward()
        with torch.no_grad():
            values = rectified.relu(mean, var)
        return [*(t.detach() for t in result), *values, m.grad, v.grad]

    with ua.fused(False):
        plain = run()
    assert not accelerated._kernels
    with ua.fused(True):
        fast = run()
    assert len(accelerated._kernels) == len(told) == 3  # the pair, its gradient, all three
    assert "uaprop: compiling rectified.relu for cpu; ua.fused(False) prevents it" in told
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=3e-5, atol=1e-30)


def test_one_kernel_for_all_shapes_and_numbers() -> None:
    """Recompiled for a single element, and no more."""
    shapes = [(7,), (3, 5), (2, 3, 4), (2, 3, 4, 5), (1, 1), (64, 64), (2, 1, 3, 2, 2)]
    config = torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True)
    with ua.fused(True), config:
        for shape in shapes:
            mean, var = points(*shape)
            found = rectified.leaky(mean, var, negative_slope=0.01 * len(shape))
            with ua.fused(False):
                expected = rectified.leaky(mean, var, negative_slope=0.01 * len(shape))
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=3e-5, atol=1e-30)
    assert not accelerated._failed


def test_it_waits_until_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(accelerated, "_PAYS", 1000)
    monkeypatch.setattr(accelerated, "_kernel", lambda function: made.append(function) or function)
    layer, x = torch.nn.ReLU(), ua.Gaussian(torch.ones(400), 0.5)
    for _ in range(3):
        expected = layer(x)
        assert not made
        _ = expected.cov
    found = layer(x)
    assert torch.equal(found.loc, expected.loc)
    assert made == [rectified.relu._pair.formula]


def test_a_missing_compiler_is_told_once_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    def no_compiler(*_: Any) -> Any:
        raise RuntimeError("there is no compiler")

    monkeypatch.setattr(accelerated, "_kernel", lambda function: no_compiler)
    mean, var = points(20)
    with ua.fused(False):
        plain = clipped.clamp(mean, var, 0.0, 6.0)
    with ua.fused(True):
        for _ in range(3):
            found = clipped.clamp(mean, var, 0.0, 6.0)
    assert told[1:] == ["uaprop: moments run without a compiler: there is no compiler"]
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
