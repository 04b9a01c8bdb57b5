"""Sorted values, and indices that are random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import integrate, stats

import uaprop as ua
from uaprop.numerics.order_statistics import order_statistics
from uaprop.rules.sort import _exchanges

from .cases import constant
from .oracles import jacobian_std, unequal

DOUBLE = torch.float64
CALLS: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: torch.sort(x, 1)[0],
    "descending": lambda x: x.sort(1, descending=True).values,
    "topk": lambda x: x.topk(2, 1).values,
    "smallest": lambda x: x.topk(2, 1, largest=False)[0],
    "kthvalue": lambda x: x.kthvalue(3, 1)[0],
    "median": lambda x: x.median(1).values,
    "msort": torch.msort,
}


def test_equal_gaussians_have_the_moments_of_the_textbook() -> None:
    """The density of a rank is ``n!/(r!(n-r-1)!) Φ^r (1-Φ)^{n-r-1} φ``."""
    n = 5
    found = order_statistics(
        torch.full((n,), 2.0, dtype=DOUBLE), torch.full((n,), 9.0, dtype=DOUBLE), 0, n
    )
    for r in range(n):
        density = stats.beta(r + 1, n - r).pdf
        moments = [
            integrate.quad(lambda u, p=p, f=density: stats.norm.ppf(u) ** p * f(u), 0, 1)[0]
            for p in (1, 2)
        ]
        assert float(found[0][r]) == pytest.approx(2 + 3 * moments[0], abs=1e-5)
        assert float(found[1][r]) == pytest.approx(9 * (moments[1] - moments[0] ** 2), rel=1e-5)


def test_very_different_variances_agree_with_samples() -> None:
    mean = torch.tensor([0.0, 1.0, -2.0, 0.4, 0.5, 30.0], dtype=DOUBLE)
    x = ua.Gaussian(mean, torch.tensor([1.0, 0.0, 9.0, 1e-8, 0.01, 4.0], dtype=DOUBLE))
    samples = x.sample(200_000, generator=torch.Generator().manual_seed(0)).sort(-1).values
    y = x.sort().values
    assert (y.std / samples.std(0) - 1).abs().max() < 0.03
    assert ((y.loc - samples.mean(0)).abs() / samples.std(0)).max() < 0.01


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch", "adjoint", "hybrid"])
@pytest.mark.parametrize("name", CALLS)
def test_a_certain_order_is_a_rearrangement(name: str, method: str) -> None:
    call = CALLS[name]
    x = unequal(constant(3, 12), 1e-4)
    y = ua.propagate(call, x, method=method)
    torch.testing.assert_close(y.loc, call(x.loc), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(y.std, jacobian_std(call, x), rtol=2e-3, atol=0)


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch"])
def test_a_random_order_of_few_elements_is_close_to_monte_carlo(method: str) -> None:
    x = unequal(constant(3, 5))
    truth = ua.propagate(CALLS["sort"], x, method="samples", samples=20_000)
    options = {"probes": 1024} if method == "sketch" else {}
    y = ua.propagate(CALLS["sort"], x, method=method, **options)
    assert (y.std / truth.std - 1).abs().max() < (0.02 if method == "diagonal" else 0.15)
    assert ((y.loc - truth.loc).abs() / truth.std).max() < (0.03 if method == "diagonal" else 0.15)


@pytest.mark.parametrize("method", ["full", "sketch", "adjoint"])
def test_a_random_order_of_many_correlated_elements_is_refused(method: str) -> None:
    x = unequal(constant(2, 12))
    with pytest.raises(ua.UnsupportedOperation, match="order is random"):
        ua.propagate(CALLS["topk"], x, method=method)
    assert torch.isfinite(ua.propagate(CALLS["topk"], x, method="hybrid").var).all()


def test_indices_refuse_to_be_used() -> None:
    x = unequal(constant(2, 5))
    for indices in (x.sort()[1], x.topk(2).indices, x.kthvalue(2)[1], x.median(1)[1]):
        with pytest.raises(ua.UnsupportedOperation, match="index"):
            torch.gather(torch.zeros(2, 5), 1, indices)


def test_too_large_a_number_is_refused_as_torch_does() -> None:
    x = unequal(constant(2, 5))
    with pytest.raises(ValueError, match="topk"):
        x.topk(6)
    with pytest.raises(ValueError, match="kthvalue"):
        x.kthvalue(0)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 21])
def test_exchanges_sort(count: int) -> None:
    values = [(7 * i * i + 3 * i) % 101 for i in range(count)]
    result = list(values)
    for lows, highs in _exchanges(count):
        for i, j in zip(lows, highs, strict=True):
            result[i], result[j] = min(result[i], result[j]), max(result[i], result[j])
    assert result == sorted(values)


@pytest.mark.parametrize(("first", "last"), [(0, 2), (1, 4), (3, 6), (4, 5)])
def test_some_ranks_are_those_of_all(first: int, last: int) -> None:
    """The upper ranks are counted from above, the lower ones from below."""
    x = unequal(constant(4, 6))
    all_of_them = order_statistics(x.loc, x.cov.var, 0, 6)
    some = order_statistics(x.loc, x.cov.var, first, last)
    for found, expected in zip(some, all_of_them, strict=True):
        torch.testing.assert_close(found, expected[:, first:last], rtol=1e-8, atol=1e-10)


def test_the_median_of_an_even_number_is_the_lower_of_two() -> None:
    x = unequal(constant(1, 6))
    ranked = x.sort(1).values
    for median in (x.median(1).values, x.median()):
        torch.testing.assert_close(median.loc.reshape(1), ranked.loc[:, 2])
        torch.testing.assert_close(median.cov.var.reshape(1), ranked.cov.var[:, 2])


def test_neighbours_a_few_standard_deviations_apart_may_change_places() -> None:
    x = ua.Gaussian(torch.tensor([0.0, 3.0], dtype=DOUBLE), torch.tensor([1.0, 1.0], dtype=DOUBLE))
    y = x.sort().values
    samples = x.sample(400_000, generator=torch.Generator().manual_seed(0)).sort(-1).values
    torch.testing.assert_close(y.loc, samples.mean(0), rtol=0, atol=6e-3)
    assert y.loc[0] < -0.005
