"""Scalar functions that need quadrature: against mpmath, at the ends of their domains, and refused beyond."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mpmath import mp, mpf
from scipy import integrate, stats
from torch import Tensor

import uaprop as ua
from uaprop.numerics import elementary, log_ndtr, logit, softsign, trigonometric
from uaprop.numerics.moments import Moments

from .cases import constant
from .oracles import jacobian_std, unequal

DOUBLE = torch.float64
Scalar = Callable[[Any], Any]
Found = Callable[[Tensor, Tensor], Moments]

EVERYWHERE: dict[str, tuple[Found, Scalar]] = {
    "erfc": (elementary.erfc, mp.erfc),
    "ndtr": (elementary.ndtr, lambda x: mp.erfc(-x / mp.sqrt(2)) / 2),
    "atan": (trigonometric.atan, mp.atan),
    "softsign": (softsign.softsign, lambda x: x / (1 + abs(x))),
    "log_ndtr": (log_ndtr.log_ndtr, lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2)),
}
WITHIN: dict[str, tuple[Found, Scalar]] = {
    "asin": (trigonometric.asin, mp.asin),
    "acos": (trigonometric.acos, mp.acos),
}
MEANS = (0.0, 1e-3, 0.4, -1.0, 5.0)
VARIANCES = (1e-8, 1e-4, 0.02, 1.0, 50.0)


@functools.cache
def expected(function: Scalar, m: float, v: float, end: float | None = None) -> list[float]:
    """Mean, gain and variance; of the part of the Gaussian within ±end, if there is one."""
    with mp.workdps(25):
        std = mp.sqrt(mpf(v))
        low, high = m - 11 * std, m + 11 * std
        if end is not None:
            low, high = max(low, -mpf(end)), min(high, mpf(end))
        cuts = {low + (high - low) * i / 12 for i in range(13)} | {mpf(0), mpf(1), mpf(-1)}
        points = sorted(x for x in cuts if low <= x <= high)
        centre = function(mpf(m))

        def mean(g: Scalar) -> Any:
            return mp.quad(lambda x: g(x) * mp.exp(-((x - m) ** 2) / (2 * mpf(v))), points)

        total = mean(lambda x: 1)
        shift = mean(lambda x: function(x) - centre) / total
        offset = mean(lambda x: x - m) / total
        spread = mean(lambda x: (x - m - offset) ** 2) / total
        slope = mean(lambda x: (function(x) - centre) * (x - m - offset)) / total / spread
        var = mean(lambda x: (function(x) - centre - shift) ** 2) / total
        return [float(centre + shift), float(slope), float(var)]


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32], ids=str)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_moments_agree_with_mpmath(name: str, dtype: torch.dtype) -> None:
    found, function = EVERYWHERE[name]
    for m in MEANS:
        for v in VARIANCES:
            mean, var = torch.tensor(m, dtype=dtype), torch.tensor(v, dtype=dtype)
            result = found(mean, var)
            low = 1e-9 if dtype == DOUBLE else 1e-4
            for one, other in zip(result, expected(function, float(mean), float(var)), strict=True):
                assert float(one) == pytest.approx(other, rel=low, abs=1e-16), (m, v)


@pytest.mark.parametrize("name", WITHIN)
def test_moments_of_what_ends_at_one_agree_with_mpmath(name: str) -> None:
    found, function = WITHIN[name]
    for m in (0.0, 0.3, -0.9):
        for share in (1e-4, 0.05, 1 / 3):
            v = (share * (1 - abs(m))) ** 2
            result = found(torch.tensor(m, dtype=DOUBLE), torch.tensor(v, dtype=DOUBLE))
            for one, other in zip(result, expected(function, m, v, 1.0), strict=True):
                assert float(one) == pytest.approx(other, rel=1e-9, abs=1e-15), (m, v)


@pytest.mark.parametrize("mean", [0.02, 0.5, 0.9, -1.0, 3.0])
@pytest.mark.parametrize("var", [1e-7, 0.01, 4.0])
def test_a_clamped_logit_agrees_with_samples(mean: float, var: float) -> None:
    m, v = torch.tensor(mean, dtype=DOUBLE), torch.tensor(var, dtype=DOUBLE)
    z = torch.special.ndtri((torch.arange(200_000, dtype=DOUBLE) + 0.5) / 200_000)
    y = torch.logit(m + v.sqrt() * z, 0.01)
    result = logit.clamped_logit(m, v, 0.01)
    assert float(result.mean) == pytest.approx(float(y.mean()), abs=1e-4 * float(y.std()) + 1e-12)
    assert float(result.var) == pytest.approx(float(y.var(correction=0)), rel=2e-3, abs=1e-15)
    gain = float((y * z).mean() / v.sqrt())
    assert float(result.gain) == pytest.approx(gain, rel=2e-3, abs=1e-9)


def test_functions_stay_finite_over_the_whole_range() -> None:
    means = torch.tensor([0.0, 1e-20, -1e-3, 7.0, -1e6, 1e18])
    variances = torch.tensor([0.0, 1e-30, 1e-6, 2.0, 1e8, 1e20])
    m, v = torch.cartesian_prod(means, variances).unbind(1)
    for name, (found, _) in EVERYWHERE.items():
        if name == "log_ndtr":  # its own variance overflows
            m, v = m.clamp(-1e6, 1e6), v.clamp_max(1e8)
        result = found(m, v)
        assert all(torch.isfinite(t).all() for t in result), name
        assert (result.var >= 0).all()


CALLS: dict[str, tuple[Scalar, float, float]] = {
    "erfc": (torch.erfc, 1.0, 0.0),
    "ndtr": (torch.special.ndtr, 1.0, 0.0),
    "log_ndtr": (torch.special.log_ndtr, 1.0, 0.0),
    "softsign": (F.softsign, 1.0, 0.0),
    "atan": (torch.atan, 1.0, 0.0),
    "asin": (torch.asin, 0.3, 0.0),
    "acos": (torch.arccos, 0.3, 0.1),
    "tan": (torch.tan, 0.3, 0.2),
    "logit": (torch.logit, 0.2, 0.5),
    "logit, clamped": (lambda x: torch.logit(x, 0.01), 0.2, 0.5),
    "logaddexp": (lambda x: torch.logaddexp(x[0], x[1]), 1.0, 0.0),
    "logaddexp2": (lambda x: torch.logaddexp2(x[0], x[1]), 1.0, 0.0),
    "xlogy": (lambda x: torch.xlogy(x[0], x[1]), 0.5, 2.0),
    "clamp": (lambda x: torch.clamp(x[0], x[1] - 1, x[2]), 1.0, 0.0),
}


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch", "adjoint", "hybrid"])
@pytest.mark.parametrize("name", CALLS)
def test_small_noise_goes_by_the_derivative(name: str, method: str) -> None:
    call, scale, offset = CALLS[name]
    x = unequal(offset + scale * constant(3, 4), 1e-4)
    y = ua.propagate(call, x, method=method)
    torch.testing.assert_close(y.loc, call(x.loc), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(y.std, jacobian_std(call, x), rtol=5e-3, atol=1e-10)


@pytest.mark.parametrize("method", ["full", "sketch"])
@pytest.mark.parametrize("name", CALLS)
def test_large_noise_is_close_to_monte_carlo(name: str, method: str) -> None:
    call, scale, offset = CALLS[name]
    noise = {"tan": 0.1, "asin": 0.1, "acos": 0.06, "logit": 0.03, "xlogy": 0.2}.get(name, 0.7)
    x = unequal(offset + scale * constant(3, 4), noise)
    truth = ua.propagate(call, x, method="samples", samples=20_000)
    options = {"probes": 512} if method == "sketch" else {}
    y = ua.propagate(call, x, method=method, **options)
    assert (y.std / truth.std - 1).abs().max() < 0.12
    assert ((y.loc - truth.loc).abs() / truth.std).max() < 0.08


@pytest.mark.parametrize(
    ("call", "mean", "words"),
    [
        (torch.asin, 0.8, "between -1 and 1"),
        (torch.acos, -0.8, "between -1 and 1"),
        (torch.logit, 0.1, "between 0 and 1"),
        (torch.logit, 0.9, "between 0 and 1"),
        (torch.tan, 1.2, "poles"),
        (torch.tan, -2.0, "poles"),
        (lambda x: torch.xlogy(x, x), 0.5, "x log x"),
        (lambda x: torch.xlogy(x + 5, x), 0.1, "positive"),
    ],
)
def test_what_may_lie_outside_is_refused(call: Scalar, mean: float, words: str) -> None:
    x = ua.Gaussian(torch.tensor([0.5, mean]), std=0.1)
    with pytest.raises(ua.UnsupportedOperation, match=words):
        call(x)


def test_a_constant_of_minus_infinity_adds_nothing_to_a_sum_of_exponentials() -> None:
    x = unequal(constant(3))
    masked = torch.tensor([-float("inf"), 0.0, float("inf")], dtype=DOUBLE)
    y = torch.logaddexp(x, masked)
    torch.testing.assert_close(y.loc[0], x.loc[0])
    torch.testing.assert_close(y.var[0], x.var[0])
    assert y.loc[2] == float("inf")
    assert y.var[2] == 0


def test_pooling_gives_values_and_indices_that_refuse_to_be_used() -> None:
    x = unequal(constant(1, 2, 4, 4))
    for pool in (
        torch.nn.MaxPool2d(2, return_indices=True),
        torch.nn.AdaptiveMaxPool2d(2, return_indices=True),
    ):
        values, indices = pool(x)
        torch.testing.assert_close(values.var, F.max_pool2d(x, 2).var, rtol=1e-3, atol=0)
        for use in (lambda i: i + 1, lambda i: x[0, 0, 0, i], lambda i: i.flatten()):
            with pytest.raises(ua.UnsupportedOperation, match="index"):
                use(indices)


@pytest.mark.parametrize(("mean", "std"), [(0.5, 0.1), (0.3, 0.08), (0.8, 0.05)])
def test_a_logit_has_the_moments_of_a_beta_distribution(mean: float, std: float) -> None:
    """By quadrature: mean, variance, and the slope of the regression on its argument."""
    count = mean * (1 - mean) / std**2 - 1
    beta = stats.beta(mean * count, (1 - mean) * count)

    def expected(function: Callable[[float], float]) -> float:
        return float(integrate.quad(lambda u: function(beta.ppf(u)), 0, 1, limit=200)[0])

    first = expected(lambda p: math.log(p / (1 - p)))
    second = expected(lambda p: (math.log(p / (1 - p)) - first) ** 2)
    slope = expected(lambda p: (math.log(p / (1 - p)) - first) * (p - mean)) / std**2
    point = torch.tensor([mean], dtype=torch.float64)
    found = logit.logit(point, torch.tensor([std**2], dtype=torch.float64))
    assert float(found.mean) == pytest.approx(first, rel=1e-5, abs=1e-7)
    assert float(found.var) == pytest.approx(second, rel=1e-5)
    assert float(found.gain) == pytest.approx(slope, rel=1e-5)
