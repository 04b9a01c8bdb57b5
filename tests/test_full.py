"""The dense covariance, over every kind: brute force where a map is linear, z-scores elsewhere."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua
from uaprop.covariance import terms
from uaprop.covariance.full import Full
from uaprop.covariance.terms import between
from uaprop.kinds import Bilinear, Joint, Select
from uaprop.methods.full import full
from uaprop.numerics import rectified

from .cases import CASES, Case, constant
from .oracles import random_input

COUNT = 40_000
EXACT = ("elementwise", "bilinear", "noise")


def correlated(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> ua.Gaussian:
    """Means and variances of order one, every element correlated with every other."""
    generator = torch.Generator().manual_seed(3)
    n = torch.Size(shape).numel()
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64) / n**0.5
    matrix = root @ root.T + 0.2 * torch.eye(n, dtype=torch.float64)
    return ua.Gaussian._from_covariance(mean.to(dtype), Full.from_dense(matrix.to(dtype), shape))


def run(call: Callable[..., Any], *x: ua.Gaussian) -> ua.Gaussian:
    answer: ua.Gaussian = full(call, x, {})
    return answer


def jacobian(call: Callable[[Any], Any], x: ua.Gaussian) -> Tensor:
    """The matrix of an affine map, from what it makes of unit vectors."""
    units = torch.eye(x.numel(), dtype=x.dtype)
    offset = call(torch.zeros_like(x.loc))
    return torch.stack([(call(u.clone().view(x.shape)) - offset).reshape(-1) for u in units], 1)


def z_scores(call: Callable[[Any], Any], x: ua.Gaussian, y: ua.Gaussian) -> tuple[float, float]:
    """How many standard errors Monte Carlo is away from mean and covariance, at the worst entry."""
    draws = x.sample(COUNT, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        values = torch.vmap(call, randomness="different", chunk_size=10_000)(draws)
    values = values.double().reshape(COUNT, -1)
    mean = values.mean(0)
    centred = values - mean
    cov = centred.T @ centred / (COUNT - 1)
    fourth = centred.square().T @ centred.square() / COUNT
    mean_error = (cov.diagonal() / COUNT).sqrt() + 1e-12
    cov_error = ((fourth - cov.square()).clamp_min(0) / COUNT).sqrt() + 1e-12
    z_mean = ((y.loc.reshape(-1) - mean).abs() / mean_error).max()
    z_cov = ((y.cov.matrix() - cov).abs() / cov_error).max()
    return float(z_mean), float(z_cov)


def agrees(call: Callable[[Any], Any], x: ua.Gaussian) -> ua.Gaussian:
    y = run(call, x)
    z_mean, z_cov = z_scores(call, x, y)
    assert z_mean < 4.5, f"mean is {z_mean:.1f} standard errors off"
    assert z_cov < 4.5, f"covariance is {z_cov:.1f} standard errors off"
    assert torch.linalg.eigvalsh(y.cov.matrix())[0] > -1e-12
    return y


def of_kind(*kinds: str) -> Any:
    chosen = [c for c in CASES if c.kind in kinds and c.rule not in ("half", "bfloat16")]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


# ------------------------------------------------------------------ every rule


@of_kind("linear")
def test_linear_maps_carry_the_whole_covariance(case: Case) -> None:
    x = correlated(case.shape)
    y = run(case.call, x)
    matrix = jacobian(case.call, x)
    truth = matrix @ x.cov.matrix() @ matrix.T
    low = 1e-6 if case.rule == "float" else 1e-12
    torch.testing.assert_close(y.cov.matrix(), truth, rtol=low, atol=low)
    torch.testing.assert_close(y.cov.var.reshape(-1), truth.diagonal(), rtol=low, atol=low)
    torch.testing.assert_close(y.loc, case.call(x.loc.clone()), rtol=low, atol=low)


@of_kind(*EXACT)
def test_the_first_nonlinearity_is_exact(case: Case) -> None:
    agrees(case.call, correlated(case.shape))


# Steps that take what they are given for Gaussian: every exchange of a sort, every product of products. How
# far covariance (relative) and mean (in standard deviations) are off where the noise is as large as the mean.
STEPWISE = dict.fromkeys(("sort", "msort", "topk", "kthvalue", "median", "order_of"), (0.25, 0.15))
STEPWISE["prod"] = (0.4, 0.04)


@of_kind("joint")
def test_vector_maps_are_close(case: Case) -> None:
    """The larger of two and the softmax of two are exact; longer ones treat a winner as Gaussian."""
    x = correlated(case.shape)
    if case.name in ("max_pool1d", "softmax-two"):
        agrees(case.call, x)
        return
    few = 20_000  # a standard error of 0.007 deviations, where 0.04 are allowed
    y, truth = run(case.call, x), ua.propagate(case.call, x, method="samples", samples=few)
    error = (y.covariance() - truth.covariance()).norm() / truth.covariance().norm()
    most, shift = STEPWISE.get(case.rule, (0.1 if "softmax" in case.rule else 0.2, 0.04))
    assert error < most
    assert ((y.loc - truth.loc).abs() / truth.std).max() < max(shift, case.tolerance)


@of_kind("linear", *EXACT)
def test_float32_follows_float64(case: Case) -> None:
    if case.rule in ("double", "type_as", "to", "float"):
        pytest.skip("the operation sets the dtype")
    small = run(case.call, correlated(case.shape, torch.float32))
    large = run(case.call, correlated(case.shape))
    assert small.dtype == small.cov.matrix().dtype == torch.float32
    scale = large.cov.matrix().abs().max()
    error = (small.cov.matrix() - large.cov.matrix()).abs().max()
    assert error <= 2e-5 * scale


@of_kind("elementwise", "bilinear", "joint", "noise")
def test_gradients(case: Case) -> None:
    x = random_input(case.shape)

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        y = run(case.call, ua.Gaussian(mean, var))
        return y.loc, y.cov.matrix()

    mean, var = x.loc.clone().requires_grad_(), x.cov.var.clone().requires_grad_()
    assert torch.autograd.gradcheck(moments, (mean, var), fast_mode=True)


# ------------------------------------------------------------------ what tensors share


def test_sums_with_itself() -> None:
    x = random_input((2, 3))
    y = run(lambda x: x + x.clone(), x)
    torch.testing.assert_close(y.cov.var, 4 * x.cov.var)
    y = run(lambda x: F.relu(x * 2) - 2 * F.relu(x), x)
    assert torch.count_nonzero(run(lambda x: x * 1 - x, x).cov.var) == 0
    assert y.cov.var.max() < 1e-15


def test_two_names_for_one_input_are_one_tensor() -> None:
    x = random_input((3,))
    y = full(lambda a, b: a - b, (x, x), {})
    assert torch.count_nonzero(y.cov.var) == 0
    other = ua.Gaussian(x.loc, x.cov.var)
    y = full(lambda a, b: a - b, (x,), {"b": other})
    torch.testing.assert_close(y.cov.var, 2 * x.cov.var)


def test_inputs_that_share_their_noise_still_do() -> None:
    x = ua.Gaussian.from_factors(torch.zeros(3), torch.eye(3)[:2])
    y = full(lambda a, b: a - b, (x, x + 1), {})
    assert y.cov.var.max() < 1e-12
    y = full(lambda a: a.sum(), (x,), {})
    torch.testing.assert_close(y.cov.var, torch.tensor(2.0))


def weights(*shape: int, seed: int = 7) -> Tensor:
    return 0.4 * constant(*shape, seed=seed)


NETWORKS: dict[str, Callable[[Any], Any]] = {
    "residual": lambda x: x + F.relu(F.linear(x, weights(4, 4))) @ weights(4, 4),
    "inception": lambda x: torch.cat(
        [F.relu(x @ weights(4, 3)), F.gelu(x @ weights(4, 2, seed=1)), x, F.hardtanh(x)], -1
    ),
    "crelu": lambda x: torch.cat([F.relu(x), F.relu(-x)], -1),
    "mlp": lambda x: F.relu(x @ weights(4, 9)) @ weights(9, 5),
    "products": lambda x: torch.cat([x * x.flip(-1), x.square(), x.abs(), x * x.roll(1, -1)], -1),
    "attention": lambda x: (x @ weights(4, 4)) @ (x @ weights(4, 4, seed=1)).mT,
    "gated": lambda x: x[:, :2] * F.sigmoid(x[:, 2:] @ weights(2, 2)),
}


@pytest.mark.parametrize("name", ["residual", "inception", "crelu", "mlp", "products", "attention"])
def test_networks_with_one_nonlinearity_are_exact(name: str) -> None:
    agrees(NETWORKS[name], correlated((2, 4)))


def test_a_product_of_a_nonlinear_function_is_exact_if_they_are_independent() -> None:
    y = run(NETWORKS["gated"], x := random_input((2, 4)))
    z_mean, z_cov = z_scores(NETWORKS["gated"], x, y)
    assert max(z_mean, z_cov) < 4.5


def test_a_deep_network_is_close_where_independence_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4)
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            fan = p.shape[1] if p.ndim > 1 else 1
            p.copy_(torch.randn(p.shape, generator=generator) * (2 / fan) ** 0.5)
    model.requires_grad_(False)
    x = ua.Gaussian(torch.randn(1, 12, generator=generator, dtype=torch.float64), 0.25)
    truth = ua.propagate(model, x, method="samples", samples=COUNT)
    y, flat = run(model, x), ua.propagate(model, x, method="diagonal")
    scale = truth.covariance().norm()
    assert (y.covariance() - truth.covariance()).norm() < 0.05 * scale
    assert (flat.covariance() - truth.covariance()).norm() > 0.5 * scale
    assert ((y.loc - truth.loc).abs() / truth.std).max() < 0.03
    hidden = agrees(model[:3], x)
    assert hidden.covariance().shape == (1, 40, 40)


def test_every_layer_has_the_moments_of_its_argument() -> None:
    """Levels: a nonlinearity's variance is that of its Gaussian argument, whatever came before."""
    layers: list[Any] = []

    def deep(x: Any) -> Any:
        for i in range(3):
            layers.append(x @ weights(4, 4, seed=i))
            x = F.relu(layers[-1])
            layers.append(x)
        return torch.cat([*layers, torch.tanh(layers[2])], -1)

    whole = run(deep, correlated((4,)))
    for argument, value in zip(layers[::2], layers[1::2], strict=True):
        moments = rectified.relu(argument.loc, argument.cov.var)
        torch.testing.assert_close(value.loc, moments.mean)
        torch.testing.assert_close(value.cov.var, moments.var)
        gain = moments.gain.diag() @ argument.cov.matrix()
        cross = between(value.cov.maps, argument.cov.maps)
        torch.testing.assert_close(cross, gain)  # Stein
    assert torch.linalg.eigvalsh(whole.cov.matrix())[0] > -1e-12


def test_batch_elements_stay_apart_unless_they_are_mixed() -> None:
    x = random_input((3, 4))
    y = run(lambda x: F.relu(x @ weights(4, 2)), x)
    matrix = y.cov.matrix().view(3, 2, 3, 2)
    assert y.covariance().shape == (3, 2, 2)
    for i in range(3):
        alone = run(lambda x: F.relu(x @ weights(4, 2)), x[i : i + 1])
        torch.testing.assert_close(y.covariance()[i], alone.covariance()[0])
        for j in range(i):
            assert torch.count_nonzero(matrix[i, :, j]) == 0
    mixed = run(lambda x: x - x.mean(0), x)
    assert torch.count_nonzero(mixed.cov.matrix().view(3, 4, 3, 4)[0, :, 1]) == 4


def test_in_place_operations_and_views() -> None:
    def written(x: Any) -> Any:
        y = x @ weights(4, 4)
        y[:, 0].relu_()
        y[:, 1] = x[:, 2]
        y += x
        return y

    def plain(x: Tensor) -> Tensor:
        y = x @ weights(4, 4)
        return x + torch.stack([y[:, 0].relu(), x[:, 2], y[:, 2], y[:, 3]], 1)

    x = random_input((2, 4))
    y, same = run(written, x), run(plain, x)
    torch.testing.assert_close(y.cov.matrix(), same.cov.matrix())
    torch.testing.assert_close(y.loc, same.loc)


def test_views_of_means_with_unusual_strides() -> None:
    def call(x: Any) -> Any:
        return F.conv2d(x, weights(3, 2, 1, 1)).permute(0, 2, 3, 1).view(1, 9, 3)

    x = random_input((1, 2, 3, 3))
    strided = ua.Gaussian(x.loc.to(memory_format=torch.channels_last), x.cov.var)
    y = run(call, strided)
    matrix = jacobian(lambda t: call(t.to(memory_format=torch.channels_last)), x)
    truth = matrix @ torch.diag(x.cov.var.reshape(-1)) @ matrix.T
    torch.testing.assert_close(y.cov.matrix(), truth)


# ------------------------------------------------------------------ vector maps


def _joint(x: Any, function: Callable[[Tensor], Tensor], composed: Any = None) -> ua.Gaussian:
    kind = Joint((x,), function, lambda m, v: (m, v), composed)
    return ua.Gaussian._from_covariance(*Full.joint(kind))


def test_a_vector_map_by_way_of_other_operations() -> None:
    """``max(a, b) = b + relu(a - b)``, exact for any correlation."""

    def larger(x: Tensor) -> Tensor:
        return torch.maximum(x[..., :2], x[..., 2:])

    def composed(x: Any) -> Any:
        return x[..., 2:] + F.relu(x[..., :2] - x[..., 2:])

    x = correlated((2, 4))
    y = _joint(x, larger, composed)
    z_mean, z_cov = z_scores(larger, x, y)
    assert max(z_mean, z_cov) < 4.5


def test_a_quadratic_vector_map_is_exact() -> None:
    def quadratic(x: Tensor) -> Tensor:
        return torch.einsum("i,kij,j->k", x, constant(3, 4, 4), x) + x[:3]

    x = correlated((4,))
    y = _joint(x, quadratic)
    z_mean, z_cov = z_scores(quadratic, x, y)
    assert max(z_mean, z_cov) < 4.5


def test_a_smooth_vector_map_is_of_second_order() -> None:
    """A tenth of the noise has a hundredth of the variance, and its relative error is a hundredth."""
    mean = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64)
    errors = []
    for std in (0.4, 0.04):
        y = _joint(
            ua.Gaussian._from_covariance(mean, Full.independent(torch.full_like(mean, std**2))),
            lambda x: torch.softmax(x, 0),
        )
        grid = torch.arange(-8, 8.01, 0.25, dtype=torch.float64)
        z = torch.cartesian_prod(grid, grid, grid)
        weight = torch.softmax(-0.5 * z.square().sum(1), 0).unsqueeze(1)
        values = torch.softmax(mean + std * z, 1)
        centre = (values * weight).sum(0)
        truth = (values - centre).mT @ ((values - centre) * weight)
        errors.append(float((y.covariance() - truth).norm() / truth.norm()))
        assert (y.loc - centre).abs().max() < 0.1 * std**3
    assert errors[0] < 0.15
    assert errors[1] < errors[0] / 50


# ------------------------------------------------------------------ the representation


def test_from_dense_and_back() -> None:
    x = correlated((2, 3))
    blocks = x.covariance()
    again = Full.from_dense(blocks, x.shape)
    torch.testing.assert_close(again.dense(), blocks)
    assert torch.count_nonzero(again.matrix()) == 18
    draws = x.sample(COUNT, generator=torch.Generator().manual_seed(1)) - x.loc
    sampled = draws.reshape(COUNT, -1).T @ draws.reshape(COUNT, -1) / COUNT
    assert (sampled - x.cov.matrix()).abs().max() < 0.03
    jacobian = constant(1, 2, 6)
    torch.testing.assert_close(x.cov.times(jacobian), jacobian @ x.cov.matrix())


@pytest.mark.parametrize(
    ("matrix", "problem"),
    [
        (torch.eye(3), "shape"),
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "semi-definite"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]]), "NaN"),
    ],
)
def test_what_is_no_covariance_is_refused(matrix: Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Full.from_dense(matrix, (2,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype: torch.dtype) -> None:
    x = ua.Gaussian(torch.zeros(2, dtype=dtype), 1.0)
    with pytest.raises(TypeError, match="float32 or float64"):
        run(F.relu, x)
    with pytest.raises(TypeError, match="float32 or float64"):
        Full.independent(torch.ones(2, dtype=dtype))
    with pytest.raises(ua.UnsupportedOperation, match="float32 or float64"):
        run(lambda x: x.to(dtype), ua.Gaussian(torch.zeros(2), 1.0))


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "LARGEST", 100)
    with pytest.raises(ValueError, match=r"11 × 11.*adjoint"):
        _ = run(F.relu, ua.Gaussian(torch.zeros(11), 1.0)).loc
    with pytest.raises(ValueError, match=r"\(11,\).*10 × 11"):
        run(lambda x: F.pad(x, (0, 1)), ua.Gaussian(torch.zeros(10), 1.0))
    with pytest.raises(ValueError, match=r"20 × 10"):
        _ = run(F.relu, ua.Gaussian(torch.zeros(10), 1.0)).loc


def test_rules_that_are_not_what_they_say_are_refused() -> None:
    x = correlated((3,))
    with pytest.raises(ua.UnsupportedOperation, match="bilinear"):
        Full.bilinear(Bilinear((x, x), lambda a, b: 2 * a * b, lambda a, b: 2 * a * b))
    with pytest.raises(ua.UnsupportedOperation, match="converts"):
        Full.select(Select((x,), lambda t: t.float()))


def test_terms_live_as_long_as_a_tensor_needs_them() -> None:
    gc.disable()
    try:
        x = correlated((3,))
        (root,) = x.cov.maps
        y = F.relu(x)
        term = weakref.ref(list(y.cov.maps)[1])
        assert len(root.residuals) == 1
        del y
        assert term() is None
        assert len(root.residuals) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "call", [F.relu, F.gelu, F.relu6, lambda x: x * x.clone(), F.dropout, lambda x: x[:, :0] + 1]
)
def test_tensors_without_elements(call: Callable[[Any], Any]) -> None:
    for shape in ((0, 3), (2, 3)):
        y = run(lambda x: call(x)[:0], ua.Gaussian(torch.zeros(shape), 1.0))
        assert y.var.shape == y.shape == call(torch.zeros(shape))[:0].shape
        assert y.covariance().numel() == 0


def test_the_answer_says_where_it_comes_from() -> None:
    y = run(F.relu, random_input((2,)))
    assert y.provenance is not None
    assert y.provenance.method == "full"
    assert "full" in repr(y)


@pytest.mark.parametrize("dense", [False, True])
def test_variances_that_are_written_to_later_do_not_change_a_result(dense: bool) -> None:
    def input() -> tuple[Tensor, ua.Gaussian]:
        if dense:
            spread = torch.eye(3) + 0.5
            return spread, ua.Gaussian.from_dense(torch.ones(3), spread)
        spread = torch.full((3,), 0.01)
        return spread, ua.Gaussian(torch.ones(3), spread)

    weight = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]])
    expected = run(lambda x: F.linear(x, weight), input()[1])
    spread, x = input()
    y = run(lambda x: F.linear(x, weight), x)
    spread.mul_(9)
    torch.testing.assert_close(y.std, expected.std)
    torch.testing.assert_close(y.covariance(), expected.covariance())
