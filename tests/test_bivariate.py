"""Covariances of functions of two jointly Gaussian variables."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import mpmath as mp
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor

from uaprop.numerics import clipped, elementary, elu, gelu, hardswish, logistic, rectified
from uaprop.numerics.bivariate import Residual, correlation, residual_covariance
from uaprop.numerics.moments import Moments

Pair = tuple[float, float]


def covariance(function: Any, mean: Tensor, var: Tensor, rho: Tensor, kinks: Any = ()) -> Tensor:
    """Of a function of every element, from the moments' gain and the residual."""
    moments: Moments = function(mean, var)
    residual = Residual(mean, var, moments, function, kinks)
    first = moments.gain * var.sqrt()
    return first.unsqueeze(1) * first * rho + residual_covariance(residual, residual, rho)


def pair(rho: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([[1, rho], [rho, 1]], dtype=dtype)


def kinked_truth(mean: Pair, std: Pair, rho: float, slopes: tuple[Pair, Pair]) -> float:
    """The covariance of two kinked functions, given one variable the other in closed form."""
    mp.mp.dps = 25
    m, s, r = [mp.mpf(x) for x in mean], [mp.mpf(x) for x in std], mp.mpf(rho)

    def value(x: Any, slope: Pair) -> Any:
        return slope[1] * x if x > 0 else slope[0] * x

    def expected(centre: Any, spread: Any, slope: Pair) -> Any:
        if spread == 0:
            return value(centre, slope)
        z = centre / spread
        positive = centre * mp.ncdf(z) + spread * mp.npdf(z)
        return slope[1] * positive + slope[0] * (centre - positive)

    means = [expected(m[i], s[i], slopes[i]) for i in (0, 1)]

    def integrand(z: Any) -> Any:
        other = expected(m[1] + r * s[1] * z, s[1] * mp.sqrt(1 - r * r), slopes[1])
        return (value(m[0] + s[0] * z, slopes[0]) - means[0]) * (other - means[1]) * mp.npdf(z)

    edges = {-m[0] / s[0], -m[1] / (s[1] * r) if r else mp.mpf(0)}
    inner = sorted(e for e in edges if abs(e) < 20)
    return mp.quad(integrand, [-22, *inner, 22], maxdegree=9)


RELU = ((0.0, 1.0), (0.0, 1.0))
POINTS = [
    ((0.0, 0.0), (1.0, 1.0), RELU),
    ((0.7, -0.4), (1.0, 2.0), RELU),
    ((0.01, 0.0), (1.0, 1.0), RELU),
    ((3.0, 2.5), (1.0, 0.5), RELU),
    ((-2.0, 2.0), (1.0, 1.0), RELU),
    ((-3e-6, 2e-6), (1e-6, 1e-6), RELU),
    ((-100.0, 1e-9), (1.0, 1e-9), RELU),
    ((0.3, -0.8), (1.3, 0.6), ((0.2, 1.0), (-1.0, 1.0))),
]
CORRELATIONS = [-1.0, -0.999999, -0.9, -0.3, 0.0, 1e-6, 0.5, 0.95, 0.9999, 1.0]


@pytest.mark.parametrize("rho", CORRELATIONS)
@pytest.mark.parametrize(("mean", "std", "slopes"), POINTS)
def test_kinked_functions_agree_with_mpmath(
    mean: Pair, std: Pair, slopes: tuple[Pair, Pair], rho: float
) -> None:
    left = torch.tensor([slope[0] for slope in slopes], dtype=torch.float64)
    right = torch.tensor([slope[1] for slope in slopes], dtype=torch.float64)
    function = functools.partial(rectified.kinked, left=left, right=right)
    m, s = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    result = covariance(function, m, s.square(), pair(rho), ((0.0, right - left),))[0, 1]
    error = abs(float(result) - float(kinked_truth(mean, std, rho, slopes)))
    assert error < 1e-11 * std[0] * std[1]


@pytest.mark.parametrize("rho", [0.9, 0.999, 1.0])
def test_inactive_units_keep_their_digits(rho: float) -> None:
    """Six deviations below the kink the covariance is 1e-11 of the input's."""
    m = torch.full((2,), -6.0, dtype=torch.float64)
    result = covariance(rectified.relu, m, torch.ones_like(m), pair(rho), ((0.0, 1.0),))[0, 1]
    truth = kinked_truth((-6.0, -6.0), (1.0, 1.0), rho, RELU)
    assert abs(float(result) / float(truth) - 1) < 1e-9


@pytest.mark.parametrize("rho", CORRELATIONS)
def test_a_clamp_is_a_difference_of_relus(rho: float) -> None:
    """``clamp(x, a, b) = a + relu(x - a) - relu(x - b)``, four covariances of ReLUs."""
    mean, std = (0.4, -0.2), (0.9, 1.1)
    m, s = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    function = functools.partial(clipped.clamp, low=-0.5, high=0.7)
    kinks = ((-0.5, 1.0), (0.7, -1.0))
    result = covariance(function, m, s.square(), pair(rho), kinks)[0, 1]
    truth = sum(
        a * b * kinked_truth((mean[0] - p, mean[1] - q), std, rho, RELU)
        for p, a in kinks
        for q, b in kinks
    )
    assert abs(float(result) - float(truth)) < 1e-11


def grid_truth(f: Callable[[Tensor], Tensor], mean: Pair, std: Pair, rho: float) -> float:
    """A sum over a fine grid, which converges faster than any power for smooth functions."""
    z = torch.arange(-10, 10.01, 0.02, dtype=torch.float64)
    weight = 0.02 * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    other = rho * z.unsqueeze(1) + math.sqrt(1 - rho * rho) * z
    second = f(mean[1] + std[1] * other) @ weight
    first = f(mean[0] + std[0] * z)
    return float((first - first @ weight) * (second - second @ weight) @ weight)


SMOOTH: dict[str, tuple[Any, Callable[[Tensor], Tensor], float]] = {
    "tanh": (logistic.tanh, torch.tanh, 1e-4),
    "sigmoid": (logistic.sigmoid, torch.sigmoid, 1e-8),
    "silu": (logistic.silu, F.silu, 1e-8),
    "gelu": (gelu.gelu, F.gelu, 1e-6),
    "sin": (elementary.sin, torch.sin, 1e-12),
    "exp": (elementary.exp, torch.exp, 1e-12),
    "cube": (functools.partial(elementary.power, exponent=3), lambda x: x**3, 1e-12),
    "hardswish": (hardswish.hardswish, F.hardswish, 1e-3),
    "elu": (functools.partial(elu.elu, a=0.5, b=1.0), lambda x: F.elu(x, 0.5), 1e-3),
}


@pytest.mark.parametrize("rho", [-1.0, -0.9, -0.4, 0.3, 0.8, 0.97, 1.0])
@pytest.mark.parametrize("name", SMOOTH)
def test_other_functions_agree_with_quadrature(name: str, rho: float) -> None:
    moments, f, tolerance = SMOOTH[name]
    mean, std = (0.3, -0.9), (1.0, 1.2)
    m, s = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    result = covariance(moments, m, s.square(), pair(rho))
    scale = float(result.diagonal().prod().sqrt())
    assert abs(float(result[0, 1]) - grid_truth(f, mean, std, rho)) < tolerance * scale
    torch.testing.assert_close(result.diagonal(), moments(m, s.square()).var, rtol=1e-13, atol=0)


@pytest.mark.parametrize(("name", "sign"), [("tanh", -1), ("cos", 1)])
def test_odd_and_even_functions_of_opposites(name: str, sign: int) -> None:
    """``f(-x) = ±f(x)``, to the last order and beyond."""
    moments = {"tanh": logistic.tanh, "cos": elementary.cos}[name]
    result = covariance(moments, torch.zeros(2).double(), torch.full((2,), 25.0).double(), pair(-1))
    torch.testing.assert_close(result[0, 1], sign * result[0, 0], rtol=1e-12, atol=0)


def test_steps_need_no_fine_quadrature() -> None:
    """A sigmoid a hundred times steeper than the noise is wide, by the moments' own smoothing."""
    m, one = torch.tensor([0.2, -0.3], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    result = covariance(logistic.sigmoid, 100 * m, 1e4 * one, pair(0.6))[0, 1]
    truth = grid_truth(lambda x: torch.sigmoid(100 * x), (0.2, -0.3), (1.0, 1.0), 0.6)
    assert abs(float(result) - truth) < 1e-6


FAMILIES: list[tuple[Any, Any]] = [
    (rectified.relu, ((0.0, 1.0),)),
    (rectified.absolute, ((0.0, 2.0),)),
    (functools.partial(clipped.clamp, low=-1.0, high=0.5), ((-1.0, 1.0), (0.5, -1.0))),
    (gelu.gelu, ()),
    (logistic.tanh, ()),
]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    rank=st.integers(1, 6),
    spread=st.floats(-3, 3),
    distance=st.sampled_from([0.0, 1.0, 8.0]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_all_functions_together_have_a_covariance(
    seed: int, rank: int, spread: float, distance: float, dtype: torch.dtype
) -> None:
    """Positive semi-definite and finite, for singular inputs, all scales, and across functions."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(6, rank, generator=generator, dtype=torch.float64) * 10**spread
    root[0] = root[1]  # two elements that are one
    root[2] = 0  # and one that is certain
    mean = torch.randn(6, generator=generator, dtype=torch.float64) * 10**spread * distance
    mean[0] = mean[1]
    mean, cov = mean.to(dtype), (root @ root.T).to(dtype)
    var = cov.diagonal()
    rho = correlation(cov, var, var)
    residuals = [Residual(mean, var, f(mean, var), f, kinks) for f, kinks in FAMILIES]
    blocks = [[residual_covariance(a, b, rho) for b in residuals] for a in residuals]
    whole = torch.cat([torch.cat(row, 1) for row in blocks])
    assert torch.isfinite(whole).all()
    scale = whole.diagonal().clamp_min(torch.finfo(dtype).tiny).rsqrt()
    correlations = (whole * scale.unsqueeze(1) * scale).double()
    least = torch.linalg.eigvalsh((correlations + correlations.mT) / 2)[0]
    assert least > -(1e-7 if dtype == torch.float64 else 1e-2)


def test_gradients_are_right_and_finite() -> None:
    mean = torch.tensor([0.3, -0.4, 2.0], dtype=torch.float64, requires_grad=True)
    root = torch.tensor([[1.0, 0.0], [0.4, 0.8], [-0.5, 0.3]], dtype=torch.float64)

    def run(m: Tensor, factor: Tensor) -> Tensor:
        cov = factor @ factor.mT
        var = cov.diagonal()
        residual = Residual(m, var, rectified.relu(m, var), rectified.relu, ((0.0, 1.0),))
        return residual_covariance(residual, residual, correlation(cov, var, var))

    root = root.requires_grad_()
    assert torch.autograd.gradcheck(run, (mean, root))
    still = torch.zeros_like(root, requires_grad=True)
    run(mean, still).sum().backward()
    assert torch.isfinite(still.grad).all()
