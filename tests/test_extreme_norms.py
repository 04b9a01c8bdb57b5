"""The largest and the smallest absolute value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import integrate, stats

import uaprop as ua
from uaprop.numerics.largest_size import largest_size, smallest_size

from .cases import constant
from .oracles import jacobian_std, unequal

INF = float("inf")
DOUBLE = torch.float64
ROWS = {
    "around zero": ([0.1, -0.4, 0.3, 0.0], [1.0, 0.5, 2.0, 0.2]),
    "far from zero": ([3.0, -4.0, 3.5, 5.0], [0.1, 0.3, 0.2, 0.1]),
    "very different": ([0.1, -1.0, 0.3, 0.9], [1e-6, 1e-2, 4.0, 1e-4]),
    "some certain": ([0.1, -0.4, 0.3, 0.5], [0.0, 0.5, 0.0, 0.2]),
    "alone": ([0.3], [1.0]),
}


def by_integration(mean: list[float], var: list[float], largest: bool) -> tuple[float, float]:
    """``E[T] = ∫ P(T > t)`` and ``E[T²] = ∫ 2t P(T > t)``."""
    pairs = [(m, v**0.5) for m, v in zip(mean, var, strict=True)]

    def inside(t: float, m: float, s: float) -> float:
        if s == 0:
            return float(abs(m) <= t)
        return float(stats.norm.cdf((t - m) / s) - stats.norm.cdf((-t - m) / s))

    def tail(t: float) -> float:
        result = 1.0
        for m, s in pairs:
            result *= inside(t, m, s) if largest else 1 - inside(t, m, s)
        return 1 - result if largest else result

    end = max(abs(m) + 12 * s for m, s in pairs)
    edges = {abs(m) + k * s for m, s in pairs for k in (-9, -5, -2, 0, 2, 5, 9)}
    points = sorted(edge for edge in edges if 0 < edge < end)
    raw = []
    for power in (1, 2):
        total, last = 0.0, 0.0
        for point in [*points, end]:
            total += integrate.quad(
                lambda t, p=power: p * t ** (p - 1) * tail(t), last, point, epsabs=1e-13
            )[0]
            last = point
        raw.append(total)
    return raw[0], raw[1] - raw[0] ** 2


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_moments_are_those_of_numerical_integration(name: str, largest: bool) -> None:
    mean, var = ROWS[name]
    found = (largest_size if largest else smallest_size)(
        torch.tensor(mean, dtype=DOUBLE), torch.tensor(var, dtype=DOUBLE)
    )
    first, second = by_integration(mean, var, largest)
    assert float(found[0]) == pytest.approx(first, abs=1e-7 * second**0.5 + 1e-10)
    assert float(found[1]) == pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch", "adjoint", "hybrid"])
@pytest.mark.parametrize("order", [INF, -INF])
def test_norms_of_infinite_order_at_small_noise(order: float, method: str) -> None:
    def call(x: Any) -> Any:
        return torch.linalg.vector_norm(x, order, 1)

    x = unequal(constant(3, 4), 1e-4)
    y = ua.propagate(call, x, method=method)
    torch.testing.assert_close(y.loc, call(x.loc), rtol=1e-6, atol=0)
    torch.testing.assert_close(y.std, jacobian_std(call, x), rtol=2e-3, atol=0)


@pytest.mark.parametrize("method", ["full", "sketch", "adjoint", "hybrid"])
def test_the_largest_absolute_value_at_large_noise(method: str) -> None:
    x = unequal(0.5 * constant(2, 4))
    truth = torch.linalg.vector_norm(x, INF, 1)
    options = (
        {"samples": 512} if method == "hybrid" else {"probes": 256} if method != "full" else {}
    )
    y = ua.propagate(lambda x: torch.linalg.vector_norm(x, INF, 1), x, method=method, **options)
    assert (y.std / truth.std - 1).abs().max() < 0.15
    assert ((y.loc - truth.loc).abs() / truth.std).max() < 0.1


@pytest.mark.parametrize("method", ["full", "sketch", "adjoint"])
def test_the_smallest_of_correlated_absolute_values_near_zero_is_refused(method: str) -> None:
    x = unequal(0.5 * constant(2, 4))
    with pytest.raises(ua.UnsupportedOperation, match="smallest absolute value"):
        ua.propagate(lambda x: torch.linalg.vector_norm(x, -INF, 1), x, method=method)
