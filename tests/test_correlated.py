"""Correlation: factors over shared sources and ensembles of draws, through every kind of map.

Oracles: matrices of linear maps from ``torch.func.jacrev``; the operation itself on every draw; closed
forms; the dense covariance of method ``"full"``; Monte Carlo with z-scores.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua
from uaprop.covariance import Covariance, Factors, Sources
from uaprop.covariance.ensemble import Ensemble
from uaprop.methods.propagate import METHODS
from uaprop.numerics.chance import RandomNumbers

from .cases import CASES, Case, constant
from .oracles import random_input

DOUBLE = torch.float64
CARRYING = ["sketch", "adjoint", "hybrid", "linear", "full"]  # exact where everything is linear
LOW = {"half": 1e-2, "bfloat16": 5e-2, "float": 1e-5}  # conversions that round

needs_full = pytest.mark.skipif("full" not in METHODS, reason="there is no method 'full' yet")


def of_kind(*kinds: str) -> Any:
    chosen = [case for case in CASES if case.kind in kinds]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: f"{case.name}-{case.kind}")


def one_source_each(x: ua.Gaussian) -> ua.Gaussian:
    """The same independent elements, as factors."""
    scales = torch.diag(x.std.reshape(-1)).view(x.numel(), *x.shape)
    return ua.Gaussian.from_factors(x.loc, scales)


def correlated(shape: tuple[int, ...], k: int = 4, scale: float = 0.5) -> ua.Gaussian:
    """An input with ``k`` sources of noise that all elements share."""
    generator = torch.Generator().manual_seed(11)
    mean = torch.randn(shape, generator=generator, dtype=DOUBLE)
    factors = scale * torch.randn((k, *shape), generator=generator, dtype=DOUBLE)
    return ua.Gaussian.from_factors(mean, factors)


def ensemble(x: ua.Gaussian, count: int = 5) -> ua.Gaussian:
    """Draws of ``x``, with a mean that takes part in autograd."""
    draws = x.sample(count, generator=torch.Generator().manual_seed(2))
    return ua.Gaussian._from_covariance(x.loc.detach().clone().requires_grad_(), Ensemble(draws))


def whole(y: ua.Gaussian) -> Tensor:
    """The covariance of all elements, across the batch too."""
    return y.reshape(-1).covariance()


def between(a: ua.Gaussian, b: ua.Gaussian) -> Tensor:
    """``Cov(a, b)`` of two tensors of one pass with the same sources."""
    assert a.cov.sources == b.cov.sources
    count = len(a.cov.values)
    return a.cov.values.reshape(count, -1).T @ b.cov.values.reshape(count, -1)


@functools.cache
def matrix(call: Callable[[Any], Any], shape: tuple[int, ...]) -> Tensor:
    """The matrix of a linear map, on flattened tensors, from what it makes of unit vectors."""
    count = math.prod(shape)
    offset = call(torch.zeros(shape, dtype=DOUBLE)).reshape(-1)
    units = torch.eye(count, dtype=DOUBLE).view(count, *shape)
    return torch.stack([call(unit.clone()).reshape(-1) - offset for unit in units], 1)


def linear_covariance(call: Callable[[Any], Any], x: ua.Gaussian) -> Tensor:
    """``J Σ Jᵀ`` on flattened tensors, the Jacobian by reverse-mode differentiation of torch's own."""
    jacobian = torch.func.jacrev(lambda t: call(t).reshape(-1))(x.loc).flatten(1)
    return jacobian @ whole(x) @ jacobian.T


# ------------------------------------------------------------------ kinds: linear and select


@of_kind("linear")
def test_linear_maps_act_on_every_factor(case: Case) -> None:
    x = random_input(case.shape)
    y = case.call(one_source_each(x))
    A = matrix(case.call, case.shape)
    low = LOW.get(case.rule, 1e-12)
    torch.testing.assert_close(y.loc, case.call(x.loc.clone()), rtol=low, atol=low)
    torch.testing.assert_close(whole(y), A @ whole(x) @ A.T, rtol=low, atol=low)


@of_kind("linear")
def test_linear_maps_of_correlated_elements(case: Case) -> None:
    x = correlated(case.shape, 3)
    y = case.call(x)
    A = matrix(case.call, case.shape)
    low = LOW.get(case.rule, 1e-12)
    torch.testing.assert_close(whole(y), A @ whole(x) @ A.T, rtol=low, atol=low)


def test_selections_with_several_outputs_stay_correlated() -> None:
    x = correlated((2, 6))
    a, b, c = x.split([1, 2, 3], 1)
    torch.testing.assert_close(between(a, c), whole(x).view(2, 6, 2, 6)[:, :1, :, 3:].reshape(2, 6))
    rows = x.unbind(0)
    torch.testing.assert_close((rows[0] - rows[1]).var, (x[:1] - x[1:]).var[0])
    torch.testing.assert_close(torch.cat([a, b, c], 1).covariance(), x.covariance())
    twice = x.repeat_interleave(2, 1)
    torch.testing.assert_close((twice[:, 0] - twice[:, 1]).var, torch.zeros(2, dtype=DOUBLE))


# ------------------------------------------------------------------ kinds: elementwise


@of_kind("elementwise")
def test_scalar_functions_of_independent_elements(case: Case) -> None:
    """The marginals are the rule's own, and what was independent stays so."""
    x = random_input(case.shape)
    y, expected = case.call(one_source_each(x)), case.call(x)
    torch.testing.assert_close(y.loc, expected.loc)
    torch.testing.assert_close(
        whole(y), torch.diag(expected.var.reshape(-1)), rtol=1e-9, atol=1e-12
    )


@of_kind("elementwise")
def test_scalar_functions_of_correlated_elements(case: Case) -> None:
    """Stein: ``Cov(f(x), x) = E[f'(x)] Σ``; and Bonnet: ``E[f'(x)] = ∂E[f(x)]/∂mean``."""
    x = correlated(case.shape)
    y = case.call(x)
    mean = x.loc.clone().requires_grad_()
    expected = case.call(ua.Gaussian(mean, x.var))
    (gain,) = torch.autograd.grad(expected.loc.sum(), mean)
    torch.testing.assert_close(y.loc, expected.loc.detach())
    torch.testing.assert_close(y.var, expected.var.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(between(y, x), gain.reshape(-1, 1) * whole(x), rtol=1e-6, atol=1e-8)


@needs_full
@pytest.mark.parametrize("call", [F.relu, F.gelu, torch.abs, F.softplus])
def test_scalar_functions_against_the_dense_covariance(call: Callable[[Any], Any]) -> None:
    """Second order, ``Σ∘Σ``, stands for all that is not linear; right for what bends one way."""
    x = correlated((1, 6), 3)
    exact = ua.propagate(call, x, method="full").covariance()
    covariances = [
        ua.propagate(call, x, method="sketch", probes=256, seed=seed).covariance()
        for seed in range(6)
    ]
    scale = exact.diagonal(dim1=1, dim2=2).sqrt()
    off = (torch.stack(covariances).mean(0) - exact) / scale.unsqueeze(1) / scale.unsqueeze(2)
    assert off.abs().max() < 0.16
    assert off.square().mean().sqrt() < 0.06


def test_a_bound_may_have_more_elements_than_what_it_clamps() -> None:
    x = ua.Gaussian(torch.tensor([0.1, -0.4, 0.8], dtype=DOUBLE), 0.5)
    bounds = torch.tensor([[0.0, 0.2, 0.4], [0.3, 0.1, 0.9]], dtype=DOUBLE)
    expected = x.clamp(max=bounds)
    factors = one_source_each(x)
    y = factors.clamp(max=bounds)
    torch.testing.assert_close(y.loc, expected.loc)
    torch.testing.assert_close(y.var, expected.var)
    gain = torch.special.ndtr((bounds - x.loc) / x.std)  # the chance not to be clamped
    by_element = gain.unsqueeze(-1) * torch.diag(x.var)
    torch.testing.assert_close(between(y, factors), by_element.view(6, 3))
    draws = ensemble(x, 20)
    y = draws.clamp(max=bounds)
    torch.testing.assert_close(y.cov.values, draws.cov.values.unsqueeze(1).clamp(max=bounds))
    (response,) = torch.autograd.grad(y.loc[1].sum(), draws.loc)
    torch.testing.assert_close(response, (draws.cov.values < bounds[1]).double().mean(0))


def test_parametric_relu_has_its_channels_in_every_draw() -> None:
    """With as many batch elements as channels, a mistaken dimension would go unnoticed."""
    layer = nn.PReLU(3).double()
    layer.weight.data = torch.tensor([0.1, 0.9, -0.4], dtype=DOUBLE)
    x = ensemble(ua.Gaussian(torch.randn(3, 3, dtype=DOUBLE), 1.0))
    expected = torch.stack([layer(draw) for draw in x.cov.values])
    torch.testing.assert_close(layer(x).cov.values, expected)


def test_residuals_that_cancel_or_underflow_are_not_lost() -> None:
    equal = ua.Gaussian.from_factors(torch.zeros(4), torch.ones(2, 4))
    relu_var = 2 * (0.5 - 0.5 / math.pi)
    for _ in range(10):  # whatever partners chance picks
        torch.testing.assert_close(F.relu(equal).var, torch.full((4,), relu_var))
    tiny = ua.Gaussian.from_factors(torch.zeros(64), 1e-14 * torch.eye(64))
    average = float((F.relu(tiny).var / tiny.var).mean())  # right on average: 0.25 would be linear
    assert average == pytest.approx(relu_var / 2, rel=0.1)


# ------------------------------------------------------------------ kinds: bilinear


def test_products_of_independent_elements_are_exact() -> None:
    x, y = random_input((5,)), random_input((5,)) * 1.5 + 0.3
    expected = x.loc.square() * y.var + y.loc.square() * x.var + x.var * y.var  # Goodman 1960
    both = one_source_each(torch.cat([x, y]))
    for _ in range(5):
        z = both[:5] * both[5:]
        torch.testing.assert_close(z.loc, x.loc * y.loc)
        torch.testing.assert_close(z.var, expected)
        disjoint = one_source_each(x) * one_source_each(y)
        torch.testing.assert_close(disjoint.loc, x.loc * y.loc)
        torch.testing.assert_close(disjoint.var, expected)


def test_products_of_one_noise_are_exact() -> None:
    x = random_input((5,))
    m, v = x.loc, x.var
    z = one_source_each(x)
    y = z * (2 * z + 1)  # 2x² + x, by way of a product of two tensors
    torch.testing.assert_close(y.loc, 2 * (m.square() + v) + m)
    torch.testing.assert_close(y.var, 8 * v.square() + v * (4 * m + 1).square())
    torch.testing.assert_close((z * z.clone()).var, z.square().var)


BILINEAR: dict[str, Callable[[Any], Any]] = {
    "mul": lambda x: x[:, :3] * x[:, 3:],
    "mul with itself": lambda x: x * (x + 1),
    "matmul": lambda x: x[:, :4].reshape(2, 2, 2) @ x[:, 2:].reshape(2, 2, 2),
    "matmul with itself": lambda x: x @ x.mT,
    "einsum": lambda x: torch.einsum("bi,bj->bij", x[:, :2], x[:, 1:4]),
    "conv": lambda x: F.conv1d(x.view(1, 2, 6), x[:, :4].reshape(2, 2, 2)),
}


@needs_full
@pytest.mark.parametrize("name", BILINEAR)
@pytest.mark.parametrize("independent", [True, False])
def test_products_against_the_dense_covariance(name: str, independent: bool) -> None:
    call = BILINEAR[name]
    x = ua.Gaussian(constant(2, 6), 0.4) if independent else correlated((2, 6), 3)
    exact = ua.propagate(call, x, method="full")
    found = [ua.propagate(call, x, method="sketch", probes=128, seed=s) for s in range(8)]
    mean, var = (torch.stack([getattr(y, a) for y in found]).mean(0) for a in ("loc", "var"))
    assert ((mean - exact.loc) / exact.std).abs().max() < 0.1
    torch.testing.assert_close(var, exact.var, rtol=0.2, atol=0)
    assert (var / exact.var - 1).abs().mean() < 0.07
    sampled = ua.propagate(call, x, method="samples", samples=4000)
    assert ((sampled.mean - exact.mean) / sampled.standard_error.mean).abs().max() < 4.5
    assert ((sampled.std - exact.std) / sampled.standard_error.std).abs().max() < 4.5


# ------------------------------------------------------------------ kinds: joint

POOLS: dict[str, Callable[[Any], Any]] = {
    "padding and stride": lambda x: F.max_pool2d(x, 3, 2, 1),
    "dilation": lambda x: F.max_pool2d(x, 2, 1, 0, 2),
    "ceil": lambda x: F.max_pool2d(x, (2, 3), (2, 3), ceil_mode=True),
    "all": lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2), ceil_mode=True),
}
SOFTMAX: dict[str, Callable[[Any], Any]] = {
    f"softmax of {n}": lambda x, n=n: F.softmax(x.flatten()[:n].unsqueeze(0), 1) for n in (2, 3, 5)
}
JOINT = POOLS | SOFTMAX


@pytest.mark.parametrize("name", JOINT)
@pytest.mark.parametrize("independent", [True, False])
def test_joint_maps_agree_with_monte_carlo(name: str, independent: bool) -> None:
    call, shape = JOINT[name], (1, 1, 5, 5)
    x = ua.Gaussian(constant(*shape), 0.4) if independent else correlated(shape)
    truth = ua.propagate(call, x, method="samples", samples=4000)
    found = [ua.propagate(call, x, method="sketch", probes=64, seed=s) for s in range(4)]
    mean, std = (torch.stack([getattr(y, a) for y in found]).mean(0) for a in ("mean", "std"))
    assert ((mean - truth.mean) / truth.std).abs().max() < 0.2
    closure = 0.05 if independent else 0.16  # what taking maxima for Gaussian costs
    assert (std / truth.std - 1).abs().mean() < closure


@needs_full
@pytest.mark.parametrize("name", JOINT)
@pytest.mark.parametrize("independent", [True, False])
def test_joint_maps_against_the_dense_covariance(name: str, independent: bool) -> None:
    """The same route by way of other operations, so the same but for what stands for the residual."""
    call, shape = JOINT[name], (1, 1, 5, 5)
    x = ua.Gaussian(constant(*shape), 0.4) if independent else correlated(shape)
    exact = ua.propagate(call, x, method="full")
    found = [ua.propagate(call, x, method="sketch", probes=64, seed=s) for s in range(6)]
    mean, std = (torch.stack([getattr(y, a) for y in found]).mean(0) for a in ("loc", "std"))
    assert ((mean - exact.loc) / exact.std).abs().max() < 0.08
    assert (std / exact.std - 1).abs().mean() < 0.05
    if name == "softmax of 2":  # a sigmoid of a difference
        y = call(one_source_each(x) if independent else x)
        sign = torch.tensor([1.0, -1.0], dtype=DOUBLE)
        var = sign @ whole(x)[:2, :2] @ sign
        sigmoid = torch.sigmoid(ua.Gaussian(sign @ x.loc.flatten()[:2], var))
        torch.testing.assert_close(y.loc[0, 0], sigmoid.loc)
        torch.testing.assert_close(y.var, sigmoid.var.expand(1, 2))


@of_kind("joint")
def test_joint_maps_of_an_ensemble_are_the_operation_itself(case: Case) -> None:
    x = ensemble(random_input(case.shape))
    y = case.call(x)
    expected = torch.stack([case.call(draw) for draw in x.cov.values])
    torch.testing.assert_close(y.cov.values, expected, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------ kinds: larger


def clark(x: ua.Gaussian) -> tuple[Tensor, Tensor]:
    """Mean and variance of the larger of two correlated elements, by Clark's raw moments (1961)."""
    (m, n), cov = x.loc, whole(x)
    spread = (cov[0, 0] + cov[1, 1] - 2 * cov[0, 1]).sqrt()
    alpha = (m - n) / spread
    wins, density = (
        torch.special.ndtr(alpha),
        torch.exp(-alpha.square() / 2) / math.sqrt(2 * math.pi),
    )
    first = m * wins + n * (1 - wins) + spread * density
    second = (m**2 + cov[0, 0]) * wins + (n**2 + cov[1, 1]) * (1 - wins)
    return first, second + (m + n) * spread * density - first.square()


@pytest.mark.parametrize("shape", [(), (7,), (2, 6), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("call", [torch.maximum, torch.minimum])
def test_the_larger_of_two_tensors_is_a_rectified_difference(
    shape: tuple[int, ...], call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of any size, the very numbers that a difference, ReLU and a sum give."""
    a, b = correlated((2, *shape), 8)
    # not contiguous, as the elements of overlapping windows are
    if len(shape) == 4:
        a, b = a[..., ::2], b[..., 1::2].expand(2, 3, 4, 2)[..., :2]
        a = a[..., :2]
    for piece in (2**20, 1, 40):
        monkeypatch.setattr("uaprop.covariance.second_order._PIECE", piece)
        found = []
        for larger in (Factors.larger, Covariance.larger):
            monkeypatch.setattr(Factors, "larger", classmethod(larger.__func__))
            a.cov.sources[0].restart()
            found.append(call(a, b))
        torch.testing.assert_close(found[0].loc, found[1].loc)
        torch.testing.assert_close(found[0].cov.values, found[1].cov.values)
        assert (found[0].var > 0).all()
        monkeypatch.undo()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_larger_of_two_elements_against_clark(dtype: torch.dtype) -> None:
    x = correlated((2,), 5)
    mean, var = clark(x)
    x = ua.Gaussian.from_factors(x.loc.to(dtype), x.cov.values.to(dtype))
    both = ua.propagate(lambda x: torch.maximum(x[0], x[1]), x, method="full")
    torch.testing.assert_close(both.loc.double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(both.var.double(), var, rtol=1e-5, atol=1e-6)
    runs = [
        ua.propagate(lambda x: torch.maximum(x[0], x[1]), x, "sketch", probes=64, seed=seed)
        for seed in range(8)
    ]
    torch.testing.assert_close(runs[0].loc.double(), mean, rtol=1e-5, atol=1e-6)
    average = torch.stack([y.var for y in runs]).mean().double()
    torch.testing.assert_close(average, var, rtol=0.05, atol=0)


def test_the_larger_of_two_where_factors_cancel() -> None:
    """A difference with one source has no product of two: fresh signs have the variance instead."""
    factors = torch.zeros(8, 2, 5, dtype=DOUBLE)
    factors[3] = torch.tensor([[1.0], [0.25]], dtype=DOUBLE)
    a, b = ua.Gaussian._from_covariance(
        torch.zeros(2, 5, dtype=DOUBLE), Factors(factors, (Sources(8),))
    )
    (sources,) = a.cov.sources
    sources.restart()
    found = torch.maximum(a, b)
    sources.restart()
    expected = b + F.relu(a - b)
    torch.testing.assert_close(found.loc, expected.loc)
    torch.testing.assert_close(found.cov.values, expected.cov.values)
    assert (found.var > 0.3).all()


def test_the_larger_of_two_answers_to_each_in_its_share() -> None:
    """The response of a maximum: the chance to win in closed form, the share of wins of draws."""
    torch.manual_seed(0)
    sources = Sources(16, linearised=True)
    mean = torch.randn(2, 40, dtype=DOUBLE, requires_grad=True)
    factors = 0.3 * torch.randn(16, 2, 40, dtype=DOUBLE)
    x = ua.Gaussian._from_covariance(mean, Factors(factors, (sources,)))
    (by_mean,) = torch.autograd.grad(torch.maximum(x[0], x[1]).loc.sum(), mean)
    gap, apart = (mean[0] - mean[1]).detach(), (factors[:, 0] - factors[:, 1]).square().sum(0)
    wins = torch.special.ndtr(gap / apart.sqrt())
    torch.testing.assert_close(by_mean, torch.stack([wins, 1 - wins]))

    draws = torch.randn(9, 2, 40, dtype=DOUBLE)
    x = ua.Gaussian._from_covariance(mean, Ensemble(draws))
    y = torch.maximum(x[0], x[1])
    torch.testing.assert_close(y.cov.values, draws.amax(1))
    (by_mean,) = torch.autograd.grad(y.loc.sum(), mean)
    share = (draws[:, 0] > draws[:, 1]).double().mean(0)
    torch.testing.assert_close(by_mean, torch.stack([share, 1 - share]))


@pytest.mark.parametrize("method", ["sketch", "adjoint", "hybrid"])
def test_the_larger_of_what_is_minus_infinity(method: str) -> None:
    """As masked elements are: they lose, and where there is nothing else they stay."""
    x = ua.Gaussian(torch.tensor([[0.3, -0.2, 0.4, 0.1]], dtype=DOUBLE), 0.04)
    mask = torch.tensor([[False, True, True, False]])
    other = torch.tensor([[False, False, True, True]])

    def model(x: Any) -> Any:
        return torch.maximum(
            x.masked_fill(mask, -torch.inf), (x + 1).masked_fill(other, -torch.inf)
        )

    with torch.no_grad():
        answer = ua.propagate(model, x, method=method)
    expected = torch.tensor([[1.3, 0.8, -torch.inf, 0.1]], dtype=DOUBLE)
    torch.testing.assert_close(answer.loc, expected, rtol=0.2, atol=0.2)
    if method != "adjoint":  # which has no derivative by what is infinite
        assert (answer.std[0, [0, 1, 3]] - 0.2).abs().max() < 0.1


@pytest.mark.parametrize("shape", [(1, 0), (0, 4), (0,)], ids=str)
def test_the_larger_of_nothing(shape: tuple[int, ...]) -> None:
    x = ua.Gaussian(torch.zeros(shape), 1.0)
    assert ua.propagate(lambda x: torch.maximum(x, x + 1), x, method="sketch").shape == shape


KINKED: dict[str, tuple[Callable[[Any], Any], float]] = {
    "clamp from below": (lambda x: x.clamp(min=0), 0.0),
    "clamp from above": (lambda x: x.clamp(0, 1), 1.0),
    "maximum": (
        lambda x: torch.maximum(x, torch.zeros_like(x.loc if hasattr(x, "loc") else x)),
        0.0,
    ),
    "of another dtype": (lambda x: torch.maximum(x, torch.tensor(0)), 0.0),
    "abs": (torch.abs, 0.0),
    "relu": (F.relu, 0.0),
    "relu6": (F.relu6, 6.0),
    "hardtanh": (lambda x: F.hardtanh(x, 0, 1), 1.0),
    "softshrink": (lambda x: F.softshrink(x, 0.5), -0.5),
    "leaky": (lambda x: F.leaky_relu(x, 0.1), 0.0),
}


@pytest.mark.parametrize("name", KINKED)
def test_a_mean_on_a_kink(name: str) -> None:
    """Torch has the slope of one side there, or of the other, or neither; draws lie on both."""
    call, place = KINKED[name]
    x = ua.Gaussian(torch.full((1, 400), place, dtype=DOUBLE), 0.01)
    exact = call(x).std
    answer = ua.propagate(call, x, method="hybrid", samples=64)
    assert (answer.std / exact - 1).abs().mean() < 0.12
    assert abs(float((answer.std / exact).mean()) - 1) < 0.06


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_draws_in_half_precision(dtype: torch.dtype) -> None:
    """To count them, and to sum up their squares, takes more digits than they have."""
    x = ua.Gaussian(torch.full((1, 8), 3.0, dtype=dtype), 0.01)
    for call in (F.relu, lambda x: torch.maximum(x, x - 2)):
        answer = ua.propagate(call, x, method="hybrid", samples=4000)
        torch.testing.assert_close(answer.std.float(), torch.full((1, 8), 0.1), rtol=0.05, atol=0)
    draws = 3 + 0.1 * torch.randn(4000, 8, generator=torch.Generator().manual_seed(0))
    var = Ensemble(draws.to(dtype)).var
    assert var.dtype == dtype
    torch.testing.assert_close(var.float(), draws.to(dtype).float().var(0), rtol=0.01, atol=0)


# ------------------------------------------------------------------ kinds: noise


@pytest.mark.parametrize(
    ("call", "shared"),
    [(lambda x: F.dropout(x, 0.3), False), (lambda x: F.dropout2d(x, 0.3), True)],
    ids=["dropout", "dropout2d"],
)
@pytest.mark.parametrize("method", ["sketch", "adjoint", "hybrid", "samples"])
def test_dropout_adds_its_noise(call: Callable[[Any], Any], shared: bool, method: str) -> None:
    """``Cov(x_i ξ_i, x_j ξ_j) = Σ + Var(ξ) (Σ + m mᵀ)`` where the mask is shared."""
    x = correlated((1, 2, 1, 2), 2)
    m, covariance = x.loc.flatten(), x.covariance()[0]
    same = torch.eye(4, dtype=DOUBLE)
    if shared:
        same = torch.block_diag(*2 * [torch.ones(2, 2, dtype=DOUBLE)])
    expected = covariance + 0.3 / 0.7 * same * (covariance + torch.outer(m, m))
    count = {"sketch": "probes", "adjoint": "probes"}.get(method, "samples")
    covariances = [
        ua.propagate(call, x, method=method, seed=seed, **{count: 1000}).covariance()[0]
        for seed in range(4)
    ]
    scale = expected.diagonal().sqrt()
    off = (torch.stack(covariances).mean(0) - expected) / torch.outer(scale, scale)
    assert off.abs().max() < 0.1


def test_dropout_of_the_input_itself_is_independent_of_it() -> None:
    """The masks' signs must not be those of the probes."""
    x = ua.Gaussian(torch.full((1, 4), 2.0, dtype=DOUBLE), 1.0)
    expected = F.dropout(x, 0.5).var.mean()
    for method, probes in itertools.product(("sketch", "adjoint"), (60, 64)):
        found = [
            ua.propagate(nn.Dropout(0.5), x, method=method, probes=probes, seed=seed).var.mean()
            for seed in range(10)
        ]
        torch.testing.assert_close(torch.stack(found).mean(), expected, rtol=0.1, atol=0)


@of_kind("noise")
def test_noise_of_an_ensemble_has_its_own_mask_for_every_draw(case: Case) -> None:
    x = random_input(case.shape)
    y = case.call(ensemble(x, 4000))
    expected = case.call(x)
    error = y.cov.values.std(0) / 4000**0.5
    assert ((y.cov.values.mean(0) - expected.loc) / error).abs().max() < 4.5
    torch.testing.assert_close(y.cov.var, expected.var, rtol=0.15, atol=0)


# ------------------------------------------------------------------ ensembles: draws and responses


@of_kind("linear", "elementwise", "bilinear")
def test_an_ensemble_is_the_operation_on_every_draw(case: Case) -> None:
    x = ensemble(random_input(case.shape))
    y = case.call(x)
    expected = torch.stack([case.call(draw.clone()) for draw in x.cov.values])
    torch.testing.assert_close(y.cov.values, expected, rtol=1e-9, atol=1e-12)


# torch's own derivative of these is not that of the function, or they cannot be vectorised
NO_JACOBIAN = {"masked_select", "half", "bfloat16", "float", "detach", "detach_copy"}


@of_kind("linear", "elementwise", "bilinear")
def test_an_ensembles_response_is_the_average_derivative(case: Case) -> None:
    """Of one operation; the response of several is the product of their averages."""
    if case.rule in NO_JACOBIAN:
        pytest.skip("no Jacobian to compare with")
    if case.name == "as_strided_scatter":
        pytest.skip("torch's own derivative of as_strided_scatter by its input is wrong")
    x = ensemble(random_input(case.shape))
    y = case.call(x)
    weights = constant(y.loc.numel()).view(y.shape)
    pulled = [_pulled_back(case.call, draw, weights) for draw in x.cov.values]
    expected = torch.stack(pulled).mean(0)
    if not y.loc.requires_grad:
        assert expected.abs().max() == 0
        return
    (found,) = torch.autograd.grad(y.loc, x.loc, weights)
    low = 1e-7 if case.rule == "hardsigmoid" else 1e-8  # torch's own derivative has 1/6 in float32
    torch.testing.assert_close(found, expected, rtol=low, atol=low / 10)


def _pulled_back(call: Callable[[Any], Any], point: Tensor, weights: Tensor) -> Tensor:
    """``weightsᵀ J`` at a point, by torch's own differentiation."""
    leaf = point.detach().clone().requires_grad_()
    y = call(leaf * 1)
    if not y.requires_grad:
        return torch.zeros_like(leaf)
    (grad,) = torch.autograd.grad(y, leaf, weights)
    return grad


def test_an_ensembles_moments_are_those_of_its_draws() -> None:
    draws = torch.randn(50, 2, 3, dtype=DOUBLE)
    x = ua.Gaussian._from_covariance(draws.mean(0), Ensemble(draws))
    torch.testing.assert_close(x.var, draws.var(0))
    for b in range(2):
        torch.testing.assert_close(x.covariance()[b], torch.cov(draws[:, b].T))
    again = x.cov.deviations(200, RandomNumbers(torch.Generator().manual_seed(1))) + draws.mean(0)
    assert all(any(torch.allclose(a, d) for d in draws) for a in again[:5])


# ------------------------------------------------------------------ shared sources, exactly


class Residual(nn.Module):
    """``x + f(x)`` with a linear ``f``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.inner = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3).eval(), nn.Conv2d(3, 2, 1)
        )

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


class Dense(nn.Module):
    """Every layer sees all before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Conv2d(2 + i, 1, 3, padding=1) for i in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return F.avg_pool2d(x, 2).flatten(1)


LINEAR: dict[str, Callable[[Any], Any]] = {
    "x + x": lambda x: x + x,
    "x + view": lambda x: x + x.view(-1).view(x.shape),
    "x + transposed": lambda x: x + x.transpose(-1, -2),
    "x - x": lambda x: x - x.clone(),
    "repeat": lambda x: x.repeat(1, 3, 1, 1).sum(1),
    "cat": lambda x: torch.cat([x, 2 * x, x], 1).sum(1),
    "stack": lambda x: torch.stack([x, -x]).sum(0) + x.flip(2),
    "residual": Residual().double(),
    "dense": Dense().double(),
    "cumulative": lambda x: torch.cat([x[:, :1], x[:, :1] + x[:, 1:2]], 1) * 3 - x,
}


@pytest.mark.parametrize("method", ["direct", *CARRYING])
@pytest.mark.parametrize("name", LINEAR)
def test_reused_tensors_are_exact(name: str, method: str) -> None:
    model, x = LINEAR[name], correlated((1, 2, 4, 4), 3)
    y = model(x) if method == "direct" else ua.propagate(model, x, method=method)
    torch.testing.assert_close(y.loc.detach(), model(x.loc).detach())
    expected = linear_covariance(model, x)
    torch.testing.assert_close(y.covariance()[0].detach(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", [*CARRYING, "samples"])
def test_sums_with_itself(method: str) -> None:
    """``x + x`` has the variance ``4v`` and ``x - x`` none."""
    x = ua.Gaussian(constant(3, 4), constant(3, 4, seed=1).square())
    rtol = 0.2 if method == "samples" else 1e-12

    def var(model: Callable[[Any], Any]) -> Tensor:
        return ua.propagate(model, x, method=method).var

    torch.testing.assert_close(var(lambda t: t + t), 4 * x.var, rtol=rtol, atol=0)
    torch.testing.assert_close(
        var(lambda t: t + t.view(-1).view(3, 4)), 4 * x.var, rtol=rtol, atol=0
    )
    assert var(lambda t: t - t).abs().max() < 1e-12
    assert var(lambda t: t - t.view(-1).view(3, 4)).abs().max() < 1e-12
    torch.testing.assert_close(var(lambda t: t.repeat(1, 2)), x.var.repeat(1, 2), rtol=rtol, atol=0)


@pytest.mark.parametrize("method", [*CARRYING, "samples"])
def test_one_gaussian_in_two_places_is_one_random_tensor(method: str) -> None:
    x = ua.Gaussian(constant(2, 3), 0.5)
    y = ua.propagate(lambda a, b: a - b, (x, x), method=method)
    assert y.var.abs().max() < 1e-12
    z = ua.propagate(lambda a, b: a["p"] + b, {"a": {"p": x}, "b": x}, method=method)
    torch.testing.assert_close(z.var, 4 * x.var, rtol=0.2 if method == "samples" else 1e-12, atol=0)


def _two_inputs(k: int) -> tuple[ua.Gaussian, ua.Gaussian]:
    a = ua.Gaussian.from_factors(constant(2, 3), constant(k, 2, 3, seed=2))
    b = ua.Gaussian.from_factors(constant(2, 3, seed=3), constant(k, 2, 3, seed=4))
    return a, b


def _sum_and_difference(a: Any, b: Any) -> Any:
    return torch.cat([a + b, a - 2 * b], 1)


@pytest.mark.parametrize("k", [1, 2, 10])
def test_two_inputs_have_disjoint_sources(k: int) -> None:
    a, b = _two_inputs(k)
    together = torch.cat([a, b], 1).covariance()
    assert together[:, :3, 3:].abs().max() == 0
    torch.testing.assert_close(together[:, :3, :3], a.covariance())
    torch.testing.assert_close(together[:, 3:, 3:], b.covariance())
    torch.testing.assert_close((a + b).covariance(), a.covariance() + b.covariance())
    torch.testing.assert_close((a - b).covariance(), a.covariance() + b.covariance())


@pytest.mark.parametrize("method", CARRYING)
@pytest.mark.parametrize("k", [1, 2, 10])
def test_two_inputs_are_independent_in_every_method(method: str, k: int) -> None:
    a, b = _two_inputs(k)
    y = ua.propagate(_sum_and_difference, (a, b), method=method)
    p, q = a.covariance(), b.covariance()
    top, bottom = torch.cat([p + q, p - 2 * q], 2), torch.cat([p - 2 * q, p + 4 * q], 2)
    expected = torch.cat([top, bottom], 1)
    if method == "sketch" and k == 10:  # more factors than probes: right on average
        found = [
            ua.propagate(_sum_and_difference, (a, b), method=method, seed=s).covariance()
            for s in range(200)
        ]
        error = torch.stack(found).std(0) / 200**0.5
        assert ((torch.stack(found).mean(0) - expected) / error).abs().max() < 4.5
    else:
        torch.testing.assert_close(y.covariance(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (3, 2)])
def test_nonlinearities_of_disjoint_sources_lose_nothing(sizes: tuple[int, int]) -> None:
    """Elements that depend on some of the sources only still get all of their residual."""
    a = ua.Gaussian.from_factors(constant(4), constant(sizes[0], 4, seed=1))
    b = ua.Gaussian.from_factors(constant(3), constant(sizes[1], 3, seed=2))
    for _ in range(4):
        joined = torch.cat([a, b])
        for call in (F.relu, torch.tanh, torch.exp):
            expected = call(ua.Gaussian(joined.loc, joined.var))
            torch.testing.assert_close(call(joined).var, expected.var)


def test_the_same_product_whatever_the_sources() -> None:
    """Of independent operands, in one set of sources or in two of different sizes."""
    x = ua.Gaussian(constant(4), 0.3)
    for k in (1, 9):
        factors = torch.zeros(k, 4, dtype=DOUBLE)
        factors[-1] = 0.7
        y = ua.Gaussian.from_factors(constant(4, seed=1), factors)
        z = one_source_each(x) * y
        v, w = x.var, y.var
        expected = x.loc.square() * w + y.loc.square() * v + v * w
        torch.testing.assert_close(z.var, expected)


# ------------------------------------------------------------------ factors as an input


def test_factors_have_their_covariance() -> None:
    mean, factors = constant(2, 3), constant(3, 2, 3, seed=1)
    x = ua.Gaussian.from_factors(mean, factors)
    torch.testing.assert_close(x.var, factors.square().sum(0))
    torch.testing.assert_close(x.covariance(), torch.einsum("kbi,kbj->bij", factors, factors))
    flat = factors.flatten(1)
    torch.testing.assert_close(whole(x), flat.T @ flat)
    assert torch.equal(x.loc, mean)


@pytest.mark.parametrize("k", [1, 8, 40])
def test_factors_draw_what_they_say(k: int) -> None:
    x = ua.Gaussian.from_factors(constant(2, 2), constant(k, 2, 2, seed=1))
    n, exact = 20_000, whole(x)
    draws = x.sample(n, generator=torch.Generator().manual_seed(3)).flatten(1)
    assert ((draws.mean(0) - x.loc.flatten()) / (exact.diagonal() / n).sqrt()).abs().max() < 4.5
    variances = exact.diagonal()
    error = ((torch.outer(variances, variances) + exact.square()) / n).sqrt()
    assert ((torch.cov(draws.T) - exact) / error).abs().max() < 4.5
    same = [x.cov.deviations(3, RandomNumbers(torch.Generator().manual_seed(1))) for _ in range(2)]
    assert torch.equal(*same)


def test_factors_must_fit() -> None:
    for factors, words in (
        (torch.ones(2, 4), "shape"),
        (torch.ones(3), "shape"),
        (torch.ones(0, 3), "shape"),
        (torch.full((1, 3), math.nan), "finite"),
    ):
        with pytest.raises(ValueError, match=words):
            ua.Gaussian.from_factors(torch.zeros(3), factors)
    with pytest.raises(TypeError, match="floating"):
        ua.Gaussian.from_factors(torch.zeros(3, dtype=torch.int64), torch.ones(1, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [*CARRYING, "samples", "auto"])
def test_factors_go_through_every_method(method: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).to(dtype)
    x = ua.Gaussian.from_factors(constant(2, 4).to(dtype), constant(2, 2, 4).to(dtype))
    y = ua.propagate(model, x, method=method)
    weight = (model[1].weight @ model[0].weight).detach()
    expected = weight @ x.covariance() @ weight.T
    rtol = {"samples": 0.2}.get(method, 1e-4 if dtype == torch.float32 else 1e-10)
    scale = float(expected.diagonal(dim1=1, dim2=2).max())
    torch.testing.assert_close(y.covariance(), expected, rtol=rtol, atol=rtol * scale)
    assert y.loc.dtype == y.cov.var.dtype == dtype


@pytest.mark.parametrize("method", ["diagonal", "calibrated"])
def test_methods_of_independent_elements_refuse_factors(method: str) -> None:
    if method not in METHODS:
        pytest.skip(f"there is no method {method!r}")
    x = correlated((2, 4))
    with pytest.raises(TypeError, match=r"independent elements.*factors|calibration"):
        ua.propagate(nn.Linear(4, 2).double(), x, method=method)


@needs_full
def test_more_probes_bring_factors_to_the_dense_covariance() -> None:
    """What chance adds goes away: codes must not repeat the same accident at every probe."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).double()
    x = correlated((1, 8), 3)
    exact = ua.propagate(model, x, method="full").std
    errors = {}
    for method, probes in itertools.product(("sketch", "adjoint"), (16, 256)):
        found = [
            ua.propagate(model, x, method=method, probes=probes, seed=seed).std / exact - 1
            for seed in range(10)
        ]
        errors[method, probes] = float(torch.stack(found).detach().square().mean().sqrt())
    for method in ("sketch", "adjoint"):
        assert errors[method, 256] < 0.06
        assert errors[method, 16] < 0.2


def test_partners_keep_codes_apart() -> None:
    """Products of codes are orthogonal to all codes, squares of different ones to each other."""
    for count in (8, 16, 64):
        sources = Sources(count)
        x = Factors.codes(torch.eye(count // 2, dtype=DOUBLE), sources)
        for _ in range(10):
            squares = sources.products(x.values)
            torch.testing.assert_close(
                squares.T @ squares, torch.eye(count // 2, dtype=DOUBLE) / count
            )
            assert (squares.T @ x.values).abs().max() < 1e-12


# ------------------------------------------------------------------ covariances are covariances


def _networks(dtype: torch.dtype) -> list[nn.Module]:
    torch.manual_seed(3)
    return [
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Softmax(1)).to(dtype),
        nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.GELU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(8, 3), nn.Tanh(),
        ).to(dtype),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [*CARRYING, "samples", "auto"])
def test_covariances_are_symmetric_and_positive(method: str, dtype: torch.dtype) -> None:
    inputs = [
        ua.Gaussian(constant(3, 6).to(dtype), constant(3, 6).abs().to(dtype)),
        ua.Gaussian.from_factors(constant(3, 6).to(dtype), constant(2, 3, 6).to(dtype)),
    ]
    for model, x in itertools.product(_networks(dtype), inputs):
        y = ua.propagate(model, x, method=method)
        dense = y.covariance().detach()
        eps = 100 * torch.finfo(dtype).eps * float(dense.abs().max())
        assert (dense - dense.mT).abs().max() <= eps
        assert torch.linalg.eigvalsh(dense).min() >= -eps
        torch.testing.assert_close(
            dense.diagonal(dim1=1, dim2=2), y.var.detach(), rtol=1e-5, atol=eps
        )
        assert dense.dtype == y.loc.dtype == dtype
