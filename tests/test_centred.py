"""Samples whose noise has the mean zero in blocks: the mean, its standard error, the covariance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.methods.centred import blocks


def sampled(model: Any, x: ua.Gaussian, seed: int = 0, samples: int = 32, **more: Any) -> Any:
    return ua.propagate(model, x, "samples", samples=samples, centred=True, seed=seed, **more)


@pytest.mark.parametrize("samples", [2, 15, 16, 17, 36, 127, 128, 1000])
def test_blocks_are_of_much_the_same_size(samples: int) -> None:
    sizes = blocks(samples)
    assert sum(sizes) == samples
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == (1 if samples < 16 else 4 if samples < 128 else 8)


@pytest.mark.parametrize("moderated", [False, True])
def test_the_mean_of_a_linear_map_is_exact_and_known_to_be(moderated: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(12, 5).double()
    x = ua.Gaussian(torch.randn(3, 12).double(), std=0.4)
    y = sampled(model, x, moderated=moderated)
    torch.testing.assert_close(y.mean, model(x.loc).detach())
    assert float((y.standard_error.mean / y.std).max()) < 1e-9


def curved(x: Tensor) -> Tensor:
    return torch.stack([x[:, 0] + 0.5 * x[:, 1] ** 2, x[:, 0] * x[:, 1], x[:, 2].exp()], 1)


@pytest.mark.parametrize("samples", [16, 40, 200])
def test_variances_and_covariances_are_unbiased(samples: int) -> None:
    x = ua.Gaussian(torch.tensor([[0.3, -0.2, 0.1]]).double(), std=0.7)
    truth = ua.propagate(curved, x, "samples", samples=400_000, seed=1).covariance()[0]
    seeds = 6400 // samples * 4
    found = torch.stack([sampled(curved, x, s, samples).covariance()[0] for s in range(seeds)])
    error = found.std(0) / seeds**0.5
    assert float(((found.mean(0) - truth) / error).abs().max()) < 5
    variances = sampled(curved, x, 3, samples)
    torch.testing.assert_close(
        variances.var, variances.covariance().diagonal(dim1=1, dim2=2), rtol=1e-9, atol=0
    )


def network() -> nn.Module:
    torch.manual_seed(2)
    layers = [nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 10)]
    return nn.Sequential(*layers).double().eval().requires_grad_(False)


@pytest.mark.parametrize("std", [0.1, 1.0])
@pytest.mark.parametrize("samples", [32, 160])
@pytest.mark.parametrize("moderated", [False, True])
def test_standard_errors_of_the_mean_are_those_of_what_is_not_linear(
    std: float, samples: int, moderated: bool
) -> None:
    """The variance of single samples, which the linear part dominates, would have them far too large."""
    model = network()
    x = ua.Gaussian(torch.randn(4, 20, generator=torch.Generator().manual_seed(3)).double(), std)
    truth = ua.propagate(model, x, "samples", samples=200_000, centred=True, seed=9)
    z, shares = [], []
    for seed in range(40):
        y = sampled(model, x, seed, samples, moderated=moderated, keys=range(4))
        error = torch.hypot(y.standard_error.mean, truth.standard_error.mean)
        z.append((y.mean - truth.mean) / error)
        shares.append(y.standard_error.mean / (y.std / samples**0.5))
    assert 0.75 < float(torch.stack(z).square().mean().sqrt()) < 1.25
    assert float(torch.stack(shares).mean()) < 0.8


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_the_result_does_not_depend_on_how_many_go_at_a_time(chunk: int) -> None:
    model = network()
    x = ua.Gaussian(torch.randn(4, 20, generator=torch.Generator().manual_seed(3)).double(), 0.5)
    whole, cut = sampled(model, x), sampled(model, x, chunk=chunk)
    torch.testing.assert_close(cut.covariance(), whole.covariance())
    for one, other in zip(cut.standard_error, whole.standard_error, strict=True):
        torch.testing.assert_close(one, other)
