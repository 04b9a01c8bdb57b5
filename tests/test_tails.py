"""Functions with kinks are computed one way for values and another for gradients: both are right."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from mpmath import mp
from torch.autograd import forward_ad

import uaprop as ua
from uaprop.covariance.response import with_gain
from uaprop.numerics import clipped, kernel, rectified
from uaprop.numerics.moments import untracked
from uaprop.numerics.tails import partial_moments, partial_moments_of_values

from . import oracle
from .test_moments import FUNCTIONS

KINKED = ["relu", "leaky_relu", "prelu", "abs", "clamp_min", "clamp_max", "relu6", "clamp", "gelu"]
every_kinked = pytest.mark.parametrize("name", KINKED)
CHUNKED = ["relu", "leaky_relu", "clamp_min"]


both_ways = pytest.mark.parametrize("moments", [partial_moments, partial_moments_of_values])


@both_ways
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_partial_moments_against_mpmath(moments: Any, dtype: torch.dtype) -> None:
    """Full precision: the exponent's rounding error grows with t², the rest stays at a few units."""
    t = torch.linspace(0, 12, 97, dtype=torch.float64).to(dtype)
    values = moments(t)
    for i, point in enumerate(t.tolist()):
        with mp.workdps(60):
            exact = [mp.erfc(point / mp.sqrt(2)) / 2]
            exact.append(mp.npdf(point) - point * exact[0])
            exact.append(exact[0] - point * exact[1])
        tolerance = torch.finfo(dtype).eps * (3 + point**2 / 2)
        for value, truth in zip(values, exact, strict=True):
            assert abs(float(value[i]) / float(truth) - 1) < tolerance, point


@both_ways
@pytest.mark.parametrize(("dtype", "end"), [(torch.float64, 37.3), (torch.float32, 12.6)])
def test_partial_moments_fall_to_zero(moments: Any, dtype: torch.dtype, end: float) -> None:
    beyond = torch.tensor([end, end + 1, 1e10, math.inf], dtype=dtype)
    assert all((value == 0).all() for value in moments(beyond))
    before = moments(torch.linspace(0, end - 0.1, 200, dtype=dtype))
    assert all((value > 0).all() and (value.diff() < 0).all() for value in before)
    assert torch.finfo(dtype).tiny < before[2][-1] < 1000 * torch.finfo(dtype).tiny
    assert all(value.isnan().all() for value in moments(torch.tensor([math.nan], dtype=dtype)))


@every_kinked
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
@pytest.mark.parametrize("tracked", [False, True])
def test_both_ways_agree_with_the_oracle(
    name: str, dtype: str, tolerance: float, tracked: bool
) -> None:
    rows = oracle.load(dtype)[name]
    mean, var = torch.tensor([row[:2] for row in rows], dtype=getattr(torch, dtype)).unbind(1)
    result = FUNCTIONS[name](mean.clone().requires_grad_(tracked), var)
    assert result.mean.requires_grad == tracked
    for values, truths in zip(result, zip(*(row[2:] for row in rows), strict=True), strict=True):
        truth = torch.tensor([math.nan if x is None else x for x in truths], dtype=torch.float64)
        told = truth.abs() > 1e-30
        if name == "gelu":
            told &= var > 0  # torch's own result has fewer digits in the tail
        error = (values.detach().double() - truth)[told] / truth[told]
        assert told.sum() > 100
        assert error.abs().max() < tolerance


@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_and_layouts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, strides and broadcast variances change nothing, and the input stays as it was."""
    mean = torch.randn(70, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    var = torch.full((30,), 0.3, dtype=torch.float64)
    kept = mean.clone(), var.clone()
    whole = FUNCTIONS[name](mean, var.expand(70, 30).contiguous())
    monkeypatch.setattr(kernel, "_CHUNK", 128)
    for result in (
        FUNCTIONS[name](mean, var.expand(70, 30)),
        FUNCTIONS[name](mean, var),
        (t.t() for t in FUNCTIONS[name](mean.t(), var.expand(70, 30).t())),
    ):
        for a, b in zip(result, whole, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-300)
    assert torch.equal(mean, kept[0])
    assert torch.equal(var, kept[1])


@pytest.mark.parametrize("tracked", [False, True])
def test_no_variance_is_exact(tracked: bool) -> None:
    """Zeros of either sign and negative variances, which rounding may leave; also the side of a tie."""
    mean = (
        torch.tensor([-3.0, -1e-40, -0.0, 0.0, 1e-40, 1.7, 3e38]).repeat(3).requires_grad_(tracked)
    )
    var = torch.tensor([0.0, -0.0, -1e-3]).repeat_interleave(7)
    zero = torch.zeros(21)
    relu = rectified.relu(mean, var)
    assert torch.equal(relu.mean, mean.clamp_min(0))
    assert torch.equal(relu.gain, (mean > 0).float())
    assert torch.equal(relu.var, zero)
    leaky = rectified.leaky(mean, var, 0.01)
    assert torch.equal(leaky.mean, torch.nn.functional.leaky_relu(mean, 0.01))
    assert torch.equal(leaky.gain, torch.where(mean > 0, 1.0, 0.01))
    assert torch.equal(leaky.var, zero)
    clamped = rectified.clamp_min(mean, var, 0.0)
    assert torch.equal(clamped.mean, mean.clamp_min(0))
    assert torch.equal(clamped.gain, (mean >= 0).float())
    assert torch.equal(clamped.var, zero)


def test_values_are_only_what_no_derivative_is_taken_of() -> None:
    x = torch.ones(3)
    assert untracked(x, x)
    grad = x.clone().requires_grad_()
    assert not untracked(x, grad)
    with torch.no_grad():
        assert untracked(x, grad)
    seen = []
    torch.func.vmap(lambda t: (seen.append(untracked(t)), t)[1])(x)
    torch.func.jvp(lambda t: (seen.append(untracked(t)), t)[1], (x,), (x,))
    assert seen == [False, False]
    with forward_ad.dual_level():
        assert not untracked(forward_ad.make_dual(x, x))


@pytest.mark.parametrize("name", CHUNKED)
def test_forward_mode_derivative(name: str) -> None:
    """Bonnet's theorem again: the mean's derivative is the gain."""
    mean = torch.linspace(-4, 4, 33, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(mean, torch.ones_like(mean))
        result = FUNCTIONS[name](dual, torch.ones_like(mean))
        slope = forward_ad.unpack_dual(result.mean).tangent
    torch.testing.assert_close(slope, FUNCTIONS[name](mean, torch.ones_like(mean)).gain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tracked", [False, True])
def test_a_tie_without_variance_has_torchs_derivative(dtype: torch.dtype, tracked: bool) -> None:
    """At the bound, also where the window has no width and where the bound is a tensor."""
    mean = torch.zeros(1, dtype=dtype, requires_grad=tracked)
    var, bound = torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)
    for result in (
        rectified.clamp_min(mean, var, 0.0),
        rectified.clamp_min(mean, var, bound),
        rectified.clamp_max(mean, var, 0.0),
        clipped.clamp(mean, var, 0.0, 0.0),
        clipped.clamp(mean, var, 0.0, 1.0),
    ):
        assert [t.item() for t in result] == [0, 1, 0]
        if tracked:
            (slope,) = torch.autograd.grad(result.mean.sum(), mean)
            assert slope.item() == 1


@pytest.mark.parametrize(
    "function", [rectified.relu, lambda m, v: rectified.kinked(m, v, 0.0, 2.0)]
)
@pytest.mark.parametrize("fused", [False, None])
def test_gradients_are_zero_rather_than_subnormal(function: Any, fused: bool | None) -> None:
    """They slow down every product they are in."""
    mean = torch.linspace(-12.5, 12.5, 4001)

    def gradients(dtype: torch.dtype) -> torch.Tensor:
        m = mean.to(dtype).requires_grad_()
        v = torch.full_like(m, 1e-2).requires_grad_()
        with ua.fused(fused):
            found = function(m * 0.1, v)
        (1e-8 * (found.mean + found.var).sum()).backward()
        return torch.stack([m.grad, v.grad])

    small = torch.finfo(torch.float32).tiny
    known, found = gradients(torch.float64).abs(), gradients(torch.float32).abs()
    assert ((known > 0) & (known < small)).sum() > 10
    assert ((found == 0) | (found > small)).all()
    assert (found[known > 1e-30] > 0).all()


@pytest.mark.parametrize("grads", [(1e-8, 0.0), (0.0, 1e-8), (1.0, -3.0), (1e20, 1e20)])
def test_gradients_without_the_gain_keep_their_digits(grads: tuple[float, float]) -> None:
    mean = torch.linspace(-1.25, 1.25, 4001)

    def gradients(dtype: torch.dtype) -> torch.Tensor:
        m = mean.to(dtype).requires_grad_()
        v = torch.full_like(m, 0.1**2).requires_grad_()
        found = rectified.relu.marginal(m, v)
        torch.autograd.backward(found, [torch.full_like(m, g) for g in grads])
        return torch.stack([m.grad, v.grad])

    known, found = gradients(torch.float64), gradients(torch.float32).double()
    assert ((found == 0) | (found.abs() > torch.finfo(torch.float32).tiny)).all()
    large = known.abs() > 1e-32
    torch.testing.assert_close(
        found[large], known[large], rtol=1e-4, atol=1e-6 * max(map(abs, grads)) * (min(grads) < 0)
    )


def test_responses_are_zero_rather_than_subnormal() -> None:
    x = torch.ones(3, requires_grad=True)
    y = with_gain(x, torch.zeros(3), torch.tensor([1e-20, 1e-10, 1.0]))
    (found,) = torch.autograd.grad(y, x, torch.full((3,), 1e-20))
    torch.testing.assert_close(found, torch.tensor([0.0, 1e-30, 1e-20]), rtol=1e-6, atol=0)
