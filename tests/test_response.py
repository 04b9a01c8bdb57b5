"""The parts that adjoint and hybrid are made of: probes, directions, pooling, centred draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.covariance import Factors, Sources
from uaprop.covariance.ensemble import Ensemble
from uaprop.covariance.sources import signed_by_position
from uaprop.methods.centred import centred
from uaprop.methods.jacobian import mixes
from uaprop.methods.pooling import pooled
from uaprop.numerics.chance import RandomNumbers


@pytest.mark.parametrize("shape", [(3, 2, 8, 8), (2, 3, 40), (4, 20), (7,), (2, 2, 4, 4, 4)])
@pytest.mark.parametrize("count", [2, 16, 12, 64])
def test_probes_have_the_right_marginals(shape: tuple[int, ...], count: int) -> None:
    std = torch.rand(shape, generator=torch.Generator().manual_seed(0)).double()
    probes = signed_by_position(std, count, RandomNumbers(torch.Generator().manual_seed(1)))
    assert probes.shape == (count, *shape)
    torch.testing.assert_close(probes.square().sum(0), std.square())


def test_a_small_window_of_probes_is_exact() -> None:
    """The variance of a 3 × 3 convolution of one channel, from 16 probes."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, 4, 3, bias=False).double()
    var = torch.rand(2, 1, 9, 9).double()
    cov = Factors.signs(var, Sources(16, seed=3))
    probes = convolution(cov.values.flatten(0, 1)).unflatten(0, (16, 2))
    exact = nn.functional.conv2d(var, convolution.weight.square())
    torch.testing.assert_close(probes.square().sum(0), exact)


def test_probes_are_right_on_average() -> None:
    """Covariances of elements that share a code vanish over seeds; z-scores."""
    std = torch.ones(2, 3, 6, 6)
    seeds = 400
    found = torch.zeros(216, 216)
    for seed in range(seeds):
        flat = signed_by_position(
            std, 8, RandomNumbers(torch.Generator().manual_seed(seed))
        ).flatten(1)
        found += flat.T @ flat / seeds
    away = found[~torch.eye(216, dtype=torch.bool)]
    assert away.abs().max() < 6 / seeds**0.5  # a covariance is ±1, 0 or between
    assert away.square().mean() < 2 / 8 / seeds


def test_enough_probes_have_the_whole_covariance() -> None:
    var = torch.rand(2, 5).double()
    cov = Factors.signs(var, Sources(16))
    torch.testing.assert_close(cov.dense(), torch.diag_embed(var))
    across_the_batch = torch.einsum("ri,rj->ij", cov.values[:, 0], cov.values[:, 1])
    assert across_the_batch.abs().max() < 1e-12


def many_outputs(rank: int, seed: int = 0) -> nn.Module:
    """A network whose 90 outputs vary in few directions."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, rank), nn.Linear(rank, 90)
    ).double()


@pytest.mark.parametrize("method", ["adjoint", "hybrid"])
def test_few_directions_can_be_all_there_are(method: str) -> None:
    model = many_outputs(3)
    x = ua.Gaussian(torch.randn(4, 12).double(), std=0.3)
    rows = ua.propagate(model, x, method=method)
    directions = ua.propagate(model, x, method=method, rank=3)
    # the linear parts are the same; pooling compares with them and so is, too
    torch.testing.assert_close(directions.covariance(), rows.covariance(), rtol=1e-6, atol=1e-10)
    torch.testing.assert_close(directions.mean, rows.mean)
    torch.testing.assert_close(directions.attribution(5), rows.attribution(5), rtol=1e-6, atol=1e-9)


def test_fewer_directions_leave_the_rest_to_the_draws() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 80)).double()
    x = ua.Gaussian(torch.randn(3, 40).double(), std=0.2)
    truth = ua.propagate(model, x, method="samples", samples=20_000)
    errors = {}
    for rank in (2, 16):
        found = [
            ua.propagate(model, x, method="hybrid", samples=64, rank=rank, seed=seed)
            for seed in range(3)
        ]
        errors[rank] = torch.stack([(y.std / truth.std - 1).abs().mean() for y in found]).mean()
        for y in found:
            share = y.attribution(0).sum(1) / y.cov.var[:, 0]
            assert ((share > 0) & (share <= 1)).all()
            assert torch.linalg.eigvalsh(y.covariance()).min() > -1e-10
    assert errors[16] < errors[2] < 0.12


def test_pooling_leaves_alone_what_differs_and_steadies_what_does_not() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(15, 500, 12, generator=generator).double() * 15**-0.5
    linear = torch.rand(500, 12, generator=generator).double() + 0.5
    alike = noise * linear.sqrt()  # the same share everywhere: pooling should find it
    steadied, error = pooled(alike, linear, 15)
    raw, better = (t.square().sum(0) / linear - 1 for t in (alike, steadied))
    assert better.square().mean() < 0.4 * raw.square().mean()
    assert abs(float(better.mean())) < 0.02
    assert 0.5 < float((better / error).square().mean().sqrt()) < 1.5
    scales = torch.logspace(-4, 4, 12).double()
    apart = alike * scales
    kept, _ = pooled(apart, linear, 15)
    assert (kept.square().sum(0) / apart.square().sum(0) - 1).abs().mean() < 0.02
    few, relative = pooled(alike[..., :3], linear[..., :3], 15)
    assert torch.equal(few, alike[..., :3])
    torch.testing.assert_close(relative, torch.full_like(relative, (2 / 15) ** 0.5))


def test_pooling_survives_outputs_without_variance() -> None:
    factors = torch.randn(8, 2, 6)
    factors[..., 0] = 0
    linear = torch.ones(2, 6)
    linear[..., 1] = 0
    found, error = pooled(factors, linear, 8)
    assert found.isfinite().all()
    assert error.isfinite().all()
    assert torch.equal(found[..., :2], factors[..., :2])
    nothing, error = pooled(torch.zeros(8, 2, 6), torch.zeros(2, 6), 8)
    assert torch.equal(nothing, torch.zeros(8, 2, 6))
    assert error.isfinite().all()


def test_centred_draws_know_the_mean_of_a_linear_model_exactly() -> None:
    model = nn.Linear(6, 3).double().requires_grad_(False)
    x = ua.Gaussian(torch.randn(2, 6).double(), std=0.5)
    y = ua.propagate(model, x, method="samples", samples=8, centred=True, chunk=3)
    torch.testing.assert_close(y.mean, model(x.loc))
    draws = torch.stack([centred(torch.randn(8, 4)) for _ in range(4000)])
    assert draws.mean(1).abs().max() < 1e-6
    assert (draws.square().mean((0, 1)) - 1).abs().max() < 6 * (2 / 7 / 4000) ** 0.5
    # and its variance without bias
    ratios = [
        ua.propagate(model, x, method="samples", samples=4, centred=True, seed=seed).cov.var
        for seed in range(400)
    ]
    ratio = torch.stack(ratios).mean(0) / model(x).cov.var
    assert (ratio - 1).abs().max() < 6 * (2 / 3 / 400) ** 0.5
    plain = ua.propagate(model, x, method="samples", samples=8, antithetic=True)
    both = ua.propagate(model, x, method="samples", samples=8, antithetic=True, centred=True)
    assert torch.equal(plain.var, both.var)


@pytest.mark.parametrize("samples", [2, 3, 15])
def test_centring_samples_does_not_change_the_variance_of_a_linear_model(samples: int) -> None:
    model = nn.Linear(6, 3).double().requires_grad_(False)
    x = ua.Gaussian(torch.randn(2, 6).double(), std=0.5)
    plain, centred = (
        ua.propagate(model, x, method="samples", samples=samples, centred=c) for c in (False, True)
    )
    torch.testing.assert_close(centred.covariance(), plain.covariance())


@pytest.mark.parametrize(
    ("dtype", "part"), [(torch.float32, 3e-3), (torch.float64, 1e-11)], ids=["single", "double"]
)
@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_a_faint_influence_of_one_batch_element_on_another_is_noticed(
    dtype: torch.dtype, part: float, size: float
) -> None:
    """In relation to its own derivative, however small that is beside those of other elements."""
    x = torch.randn(2, 3, dtype=dtype).requires_grad_()
    own = torch.tensor([[1.0], [size]], dtype=dtype) * x
    assert not mixes(own, [x])
    assert mixes(own + torch.tensor([[part * size], [0.0]], dtype=dtype) * x[1], [x])


class _InAnyOrder(torch.autograd.Function):
    """The identity; its derivative is rounded otherwise each time, as sums on several threads are."""

    seen = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _InAnyOrder.seen += 1
        sign = 1 if _InAnyOrder.seen % 2 else -1
        return grads[0] * (1 + sign * 20 * torch.finfo(grads[0].dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_rounding_is_no_influence_of_one_batch_element_on_another(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, dtype=dtype).requires_grad_()
    assert not mixes(_InAnyOrder.apply(x), [x])


def test_what_is_computed_twice_is_the_same_twice() -> None:
    x = ua.Gaussian.from_factors(torch.zeros(4), torch.randn(2, 4))
    assert (torch.relu(x) - torch.relu(x)).cov.var.count_nonzero() == 0


@pytest.mark.parametrize("method", ["hybrid", "adjoint"])
def test_many_directions_and_few_passes_leave_no_bias(method: str) -> None:
    """With more directions than passes, the passes must not choose the directions themselves."""
    torch.manual_seed(123)
    model = torch.nn.Linear(600, 300).requires_grad_(False)
    x = ua.Gaussian(torch.zeros(4, 600), std=1.0)
    true = model.weight.square().sum(1).sqrt()
    ratio = ua.propagate(model, x, method=method, rank=16).std / true
    assert abs(float(ratio.mean()) - 1) < 0.06  # it was 0.56
    assert float((ratio - 1).abs().mean()) < 0.15


def test_the_users_seed_is_not_the_methods() -> None:
    """Weights from torch.manual_seed(0) are not the numbers that seed 0 draws."""
    torch.manual_seed(0)
    weight = torch.randn(200, 1000)
    y = ua.propagate(
        lambda x: x @ weight.T, ua.Gaussian(torch.zeros(1, 1000), std=1.0), "samples", samples=400
    )
    ratio = y.std / weight.square().sum(1).sqrt()
    assert abs(float(ratio.mean()) - 1) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("draws", [2, 3, 7])
def test_variances_of_draws(draws: int, dtype: torch.dtype) -> None:
    """As torch's, and exactly zero where all are the same: a third of 3 x is not x."""
    values = 1e3 + torch.randn(draws, 4, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    same = torch.linspace(-1e3, 1e3, 50, dtype=dtype)
    values[:, 0] = same
    var = Ensemble(values).var
    torch.testing.assert_close(var, values.var(0))
    assert (var[0] == 0).all()
    assert (var[1:] > 0).all()
