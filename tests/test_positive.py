"""Roots, logarithms and quotients of what is positive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import uaprop as ua
from uaprop.numerics import positive

from .cases import CASES, Case
from .oracles import jacobian_std, random_input, unequal
from .test_correlated import between, correlated, one_source_each, whole
from .versions import compiles

DOUBLE = torch.float64
every_case = pytest.mark.parametrize(
    "case", [case for case in CASES if case.kind == "positive"], ids=lambda case: case.name
)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "pow": lambda x: x**0.3,
    "inverse power": lambda x: x**-2,
    "quotient": lambda x: 1 / x,
    "method": lambda x: x.sqrt(),
}


@every_case
def test_moments_are_close_to_monte_carlo(case: Case) -> None:
    x = random_input(case.shape)
    truth = ua.propagate(case.call, x, method="samples", samples=60_000)
    for y in (case.call(x), ua.propagate(case.call, x, method="full")):
        assert (y.std / truth.std - 1).abs().max() < case.tolerance + 4 / (2 * 60_000) ** 0.5
        assert ((y.loc - truth.loc).abs() / truth.std).max() < case.tolerance + 4 / 60_000**0.5
    # products of sources meet by chance: right on average over the choices
    found = [ua.propagate(case.call, x, method="sketch", probes=64, seed=s) for s in range(32)]
    std = torch.stack([y.cov.var for y in found]).mean(0).sqrt()
    assert (std / truth.std - 1).abs().max() < case.tolerance + 0.05


@pytest.mark.parametrize("power", [0.5, -0.5, -1.0, 0.25, 1.5, -3.0, 0.0], ids=str)
@pytest.mark.parametrize("count", [8, 32, 128])
def test_means_of_squares(power: float, count: int) -> None:
    """Exactly gamma distributed: moments are ratios of gamma functions, the gain is ``p E[xᵖ]/m``."""
    k = torch.tensor(count / 2, dtype=DOUBLE)
    mean, var = torch.ones((), dtype=DOUBLE), 1 / k
    if power == 0:  # the logarithm
        found = positive.log(mean, var)
        expected = torch.digamma(k) - k.log()
        spread = torch.polygamma(1, k)
    else:
        found = positive.power(mean, var, power)
        raw = [
            torch.exp(torch.lgamma(k + p) - torch.lgamma(k) - p * k.log())
            for p in (power, 2 * power)
        ]
        expected, spread = raw[0], raw[1] - raw[0].square()
        assert found.gain / (power * expected) == pytest.approx(
            1, abs=8 * power**4 / count**2 + 0.02 / count
        )
    order = max(abs(power), 1) ** 4 / count**2  # what a second order leaves
    assert abs(found.mean - expected) < 15 * order * spread.sqrt()
    assert found.var.sqrt() / spread.sqrt() == pytest.approx(1, abs=15 * order)
    assert found.var >= found.gain.square() * var * (1 - 1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gain_carries_correlation(name: str) -> None:
    x = correlated((2, 3), scale=0.1) * 0.5 + 4
    y = FUNCTIONS[name](x)
    slope = torch.func.vmap(torch.func.grad(FUNCTIONS[name]))(x.loc.flatten())
    shared = slope.unsqueeze(1) * whole(x)
    torch.testing.assert_close(between(y, x), shared, rtol=0.02, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_may_be_negative_is_refused(name: str) -> None:
    x = ua.Gaussian(torch.tensor([4.0, 2.9]), 1.0)
    with pytest.raises(ua.UnsupportedOperation, match="three standard deviations") as caught:
        FUNCTIONS[name](x)
    assert "samples" in str(caught.value)
    assert "torch." in caught.value.operation
    FUNCTIONS[name](x[:1])


def test_a_model_that_is_refused_has_real_draws() -> None:
    x = ua.Gaussian(torch.tensor([[2.0, 2.5, 3.0]]), std=0.8)
    with pytest.raises(ua.UnsupportedOperation, match="log"):
        ua.propagate(lambda x: torch.log(x.clamp_min(0.1)), x, method="sketch")
    y = ua.propagate(lambda x: torch.log(x.clamp_min(0.1)), x, method="hybrid")
    assert torch.isfinite(y.var).all()


def test_zeros_without_variance() -> None:
    x = ua.Gaussian(torch.tensor([0.0, 4.0, -1.0]), torch.tensor([0.0, 0.1, 0.0]))
    for call in (torch.sqrt, torch.rsqrt, torch.reciprocal, torch.log):
        y = call(x)
        torch.testing.assert_close(y.loc[[0, 2]], call(x.loc[[0, 2]]), equal_nan=True)
    assert torch.sqrt(x).var[0] == 0
    assert torch.rsqrt(x[:2]).var[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_small_numbers_keep_their_digits(dtype: torch.dtype) -> None:
    x = ua.Gaussian(torch.tensor([1e-3, 1e-2, 1.0, 50.0], dtype=dtype), 0.0)
    x = ua.Gaussian(x.loc, (0.1 * x.loc.float()).square().to(dtype))
    y = torch.log(x)
    ratio = (x.var.double() / x.loc.double().square()).sqrt()
    torch.testing.assert_close(y.std.double(), ratio, rtol=0.02, atol=0)


def test_quotients_of_one_noise() -> None:
    x = one_source_each(ua.Gaussian(torch.tensor([3.0, 5.0], dtype=DOUBLE), 0.1))
    assert torch.count_nonzero((x / x).var) == 0
    one = x / (2 * x)
    torch.testing.assert_close(one.loc, torch.full_like(one.loc, 0.5), rtol=1e-3, atol=0)
    assert (one.std < 1e-3 * x.std / x.loc).all()


@pytest.mark.parametrize("method", ["full", "sketch", "hybrid"])
def test_shares_of_a_sum(method: str) -> None:
    """Dividend and divisor depend on each other."""
    x = ua.Gaussian(torch.tensor([[0.5, -1.0, 2.0, 0.0, 1.0, 0.3]], dtype=DOUBLE), 0.04)

    def shares(x: Any) -> Any:
        weights = torch.exp(x)
        return weights / torch.sum(weights, 1, keepdim=True)

    truth = ua.propagate(shares, x, method="samples", samples=20_000)
    options = {"probes": 512} if method == "sketch" else {}
    y = ua.propagate(shares, x, method=method, **options)
    assert (y.std / truth.std - 1).abs().max() < (0.2 if method == "hybrid" else 0.1)
    flat = ua.propagate(shares, x, method="diagonal")
    assert (flat.std / truth.std - 1).abs().max() > 0.2


def test_a_quotient_of_nearly_equal_noise_at_small_noise() -> None:
    """``x/(x + 0.1)`` is the small difference of two large terms."""

    def call(x: Any) -> Any:
        return x / (x + 0.1)

    x = unequal(torch.linspace(5, 8, 6, dtype=DOUBLE).view(2, 3), 0.01)
    for method in ("full", "sketch", "adjoint", "hybrid"):
        y = ua.propagate(call, x, method=method)
        torch.testing.assert_close(y.std, jacobian_std(call, x), rtol=0.01, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_log1p_keeps_the_digits_of_a_small_mean(dtype: torch.dtype) -> None:
    mean = torch.tensor([1e-8, -1e-8, 1e-12, 0.0, 0.3, -0.6, 5.0], dtype=dtype)
    std = 0.1 * mean.abs()
    y = torch.log1p(ua.Gaussian(mean, std=std))
    m, v = mean.double(), std.double().square()
    expected = torch.log1p(m) - 0.5 * v / (1 + m).square()
    torch.testing.assert_close(y.loc.double(), expected, rtol=1e-3, atol=0)
    torch.testing.assert_close(y.std.double(), std.double() / (1 + m), rtol=0.1, atol=0)


def test_a_divisor_that_may_be_zero_is_refused_on_either_side() -> None:
    for mean in (2.9, -2.9, 0.0):
        x = ua.Gaussian(torch.tensor([4.0, mean]), 1.0)
        for call in (torch.reciprocal, lambda x: 2 / x, lambda x: x**-3, lambda x: (x + 1) / x):
            with pytest.raises(ua.UnsupportedOperation, match="away from zero"):
                call(x)


@compiles
def test_a_traced_program_is_not_asked_for_its_values() -> None:
    x = ua.Gaussian(torch.ones(3), 1.0)
    y = torch.compile(lambda x: torch.sqrt(x), fullgraph=True, backend="eager")(x)
    assert torch.isfinite(y.var).all()


def test_a_norm_of_noise_is_not_refused() -> None:
    x = ua.Gaussian(torch.zeros(2, 4), 1.0)
    assert torch.isfinite(F.normalize(x).var).all()
    assert torch.isfinite(torch.linalg.vector_norm(x, dim=1).var).all()
