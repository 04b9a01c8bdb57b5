"""Hybrid converges to the truth, whatever the product of averaged derivatives is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua


def twice_rectified(x: Tensor) -> Tensor:
    """At the mean 0 each gate is open half of the time, always together.

    So the averaged derivative is 1/2, and the product of averages 1/4.
    """
    return torch.relu(torch.relu(x))


def found(model: Callable[[Any], Any], x: ua.Gaussian, **options: Any) -> ua.Gaussian:
    y = ua.propagate(model, x, "hybrid", **options)
    assert isinstance(y, ua.Gaussian)
    return y


@pytest.mark.parametrize("rank", [None, 4])
def test_variances_converge_where_the_product_of_averages_is_wrong(rank: int | None) -> None:
    x = ua.Gaussian(torch.zeros(2, 6).double(), std=1.0)
    y = found(twice_rectified, x, samples=8192, rank=rank)
    truth = 0.5 - 0.5 / math.pi  # of a rectified standard normal variable; 0.216 without a slope
    torch.testing.assert_close(y.var, torch.full_like(y.var, truth), rtol=0.04, atol=0)


def test_attribution_has_the_averaged_derivative() -> None:
    x = ua.Gaussian(torch.zeros(1, 3).double(), std=2.0)
    y = found(twice_rectified, x, samples=8192)
    expected = torch.tensor([[0.0, 0.25 * 4.0, 0.0]]).double()
    torch.testing.assert_close(y.attribution(1), expected, rtol=0.06, atol=0.01)


@pytest.mark.parametrize("rank", [None, 3])
def test_covariances_of_different_outputs_converge(rank: int | None) -> None:
    """Each output has a slope of its own, and follows what is wrong with the response of another."""
    mixed = torch.tensor(
        [[1.0, 1.0, 0.0], [0.0, 1.0, -1.0], [0.5, 0.0, 2.0], [1.0, -1.0, 1.0]]
    ).double()

    def model(x: Tensor) -> Tensor:
        parts = [x[:, :1], twice_rectified(x[:, 1:2]), torch.relu(twice_rectified(x[:, 2:3]))]
        return torch.cat(parts, 1) @ mixed.T

    x = ua.Gaussian(torch.zeros(1, 3).double(), std=1.0)
    y = found(model, x, samples=8192, rank=rank)
    rectified = 0.5 - 0.5 / math.pi
    truth = mixed @ torch.diag(torch.tensor([1.0, rectified, rectified]).double()) @ mixed.T
    torch.testing.assert_close(y.covariance()[0], truth, rtol=0.05, atol=0.04)


@pytest.mark.parametrize("samples", [16, 64])
def test_a_derivative_with_heavy_tails_does_no_harm(samples: int) -> None:
    """That of a logarithm of a power that may be next to zero has no average."""

    def log_power(x: Tensor) -> Tensor:
        return (x[:, :32].square() + x[:, 32:].square()).log().mean(1, keepdim=True)

    torch.manual_seed(0)
    x = ua.Gaussian(torch.randn(8, 64), std=1.0)
    truth = ua.propagate(log_power, x, "samples", samples=20_000)
    ratios = torch.stack(
        [
            found(log_power, x, samples=samples, seed=s, keys=range(8)).std / truth.std
            for s in range(20)
        ]
    )
    plain = torch.stack(
        [
            ua.propagate(log_power, x, "samples", samples=samples, seed=s, keys=range(8)).std
            / truth.std
            for s in range(20)
        ]
    )
    assert float((ratios - 1).square().mean()) < 1.3 * float((plain - 1).square().mean())


@pytest.mark.parametrize("samples", [3, 16])
def test_a_linear_map_is_exact_and_known_to_be(samples: int) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 12), nn.Linear(12, 5))
    x = ua.Gaussian(torch.randn(4, 20), std=0.3)
    exact = ua.propagate(model, x, "linear")
    y = found(model, x, samples=samples)
    torch.testing.assert_close(y.covariance(), exact.covariance(), rtol=1e-4, atol=1e-6)
    assert float((y.standard_error.std / y.std).max()) < 1e-3


def deep(width: int = 24, depth: int = 8) -> nn.Module:
    """A residual network of rectifiers, whose gates are correlated from layer to layer."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x + self.inner(x))

    torch.manual_seed(2)
    blocks = [Block() for _ in range(depth)]
    return nn.Sequential(*blocks, nn.Linear(width, 6)).double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def deep_truth() -> tuple[nn.Module, ua.Gaussian, ua.Gaussian]:
    model = deep()
    x = ua.Gaussian(
        torch.randn(4, 24, generator=torch.Generator().manual_seed(3)).double(), std=0.7
    )
    return model, x, ua.propagate(model, x, "samples", samples=100_000, seed=9)


def test_more_samples_are_closer_to_the_truth(
    deep_truth: tuple[nn.Module, ua.Gaussian, ua.Gaussian],
) -> None:
    model, x, truth = deep_truth
    errors = {}
    for samples in (16, 64, 256, 1024):
        ratios = torch.stack(
            [found(model, x, samples=samples, seed=s).std / truth.std for s in range(8)]
        )
        errors[samples] = float((ratios - 1).square().mean().sqrt())
    assert errors[64] < 0.7 * errors[16]
    assert errors[256] < 0.7 * errors[64]
    assert errors[1024] < 0.7 * errors[256]


@pytest.mark.parametrize("samples", [64, 512])
def test_standard_errors_are_right(
    samples: int, deep_truth: tuple[nn.Module, ua.Gaussian, ua.Gaussian]
) -> None:
    model, x, truth = deep_truth
    of_std, of_mean = [], []
    for seed in range(40):
        y = found(model, x, samples=samples, seed=seed, keys=range(4))
        known, own = truth.standard_error, y.standard_error
        of_std.append((y.std - truth.std) / torch.hypot(own.std, known.std))
        of_mean.append((y.mean - truth.mean) / torch.hypot(own.mean, known.mean))
    for z in (of_std, of_mean):
        assert 0.7 < float(torch.stack(z).square().mean().sqrt()) < 1.3


def test_a_derivative_that_torch_has_wrong_is_found_out() -> None:
    """That of ``index_fill`` by its value counts an index twice that is named twice."""
    x = ua.Gaussian(torch.tensor(2.0).double(), std=0.5)
    index = torch.tensor([0, 0, 2])
    y = found(lambda v: torch.zeros(4).double().index_fill(0, index, v), x)
    torch.testing.assert_close(
        y.std, torch.tensor([0.5, 0.0, 0.5, 0.0]).double(), rtol=1e-6, atol=1e-9
    )


def test_linear_outputs_say_nothing_of_the_slopes_of_others() -> None:
    """A slope that is known exactly, beside those that are not, is not the average of all."""

    def model(x: Tensor) -> Tensor:
        return torch.cat([3 * x[:, :4], twice_rectified(x)], 1)

    x = ua.Gaussian(torch.zeros(100, 8).double(), std=1.0)
    var = found(model, x, samples=32, keys=range(100)).var
    torch.testing.assert_close(var[:, :4], torch.full((100, 4), 9.0).double(), rtol=1e-6, atol=0)
    rectified = torch.tensor(0.5 - 0.5 / math.pi).double()
    torch.testing.assert_close(var[:, 4:].mean(), rectified, rtol=0.1, atol=0)


@pytest.mark.parametrize("scale", [1e-80, 1e-20, 1.0, 1e60])
def test_a_response_that_cancels_is_no_variance(scale: float) -> None:
    """Only the sign is left: averaged derivatives do not cancel, those of each sample do."""
    signs = torch.tensor([[1.0, -2.0, 0.5]]).double()

    def model(x: Tensor) -> Tensor:
        return torch.cat([x / (x * x).sqrt(), x / scale], 1)

    y = found(model, ua.Gaussian(scale * signs, std=0.02 * scale))
    assert float(y.std[0, :3].max()) < 1e-6
    torch.testing.assert_close(y.std[0, 3:], torch.full((3,), 0.02).double(), rtol=1e-6, atol=0)


def test_outputs_without_elements() -> None:
    y = found(lambda x: torch.relu(x)[:, :0], ua.Gaussian(torch.zeros(2, 3), std=1.0))
    assert y.shape == (2, 0)
