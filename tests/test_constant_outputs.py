"""Outputs without a derivative: constants stay as they are, and what changes is never taken for certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua

torch.manual_seed(0)
LAYER, WIDE = nn.Linear(5, 1).requires_grad_(False), nn.Linear(5, 100).requires_grad_(False)
MEAN = torch.randn(4, 5)


def decided(x: Tensor) -> Tensor:
    return LAYER(x) > 0


def with_class(x: Tensor) -> tuple[Tensor, Tensor]:
    scores = WIDE(x)
    return scores, scores.argmax(-1)


@pytest.mark.parametrize("method", ["auto", "linear", "samples", "hybrid"])
@pytest.mark.parametrize("model", [decided, with_class])
def test_an_output_that_is_decided_by_the_noise_is_refused(
    model: Callable[..., Any], method: str
) -> None:
    with pytest.raises(ua.UnsupportedOperation):
        ua.propagate(model, ua.Gaussian(MEAN, std=0.5), method)


def test_a_number_that_jumps_is_refused_by_linear_and_sampled_by_the_default() -> None:
    def jumps(x: Tensor) -> Tensor:
        return (LAYER(x) > 0).float()

    x = ua.Gaussian(MEAN, std=0.5)
    with pytest.raises(ua.UnsupportedOperation, match="no derivative"):
        ua.propagate(jumps, x, "linear")
    y = ua.propagate(jumps, x)
    above = 0.5 * torch.erfc(-LAYER(MEAN) / (0.5 * LAYER.weight.norm()) / 2**0.5)
    torch.testing.assert_close(y.mean, above, rtol=0, atol=0.05)


@pytest.mark.parametrize("method", ["auto", "linear", "samples", "hybrid"])
def test_a_constant_beside_the_output_stays_a_tensor(method: str) -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return LAYER(x), torch.arange(len(x)), torch.ones(len(x))

    y, index, ones = ua.propagate(model, ua.Gaussian(MEAN, std=0.5), method)
    assert isinstance(y, ua.Gaussian)
    assert torch.equal(index, torch.arange(4))
    assert torch.equal(ones.mean if isinstance(ones, ua.Gaussian) else ones, torch.ones(4))


@pytest.mark.parametrize("outputs", [5, 80])
def test_a_linear_map_without_a_rule_is_exact_by_default(outputs: int) -> None:
    weight = torch.randn(5, outputs, generator=torch.Generator().manual_seed(2))

    def spectrum(x: Tensor) -> Tensor:
        return torch.fft.fft(x @ weight).real

    y = ua.propagate(spectrum, ua.Gaussian(MEAN, std=0.3))
    matrix = torch.fft.fft(weight).real
    torch.testing.assert_close(y.std[0], 0.3 * matrix.norm(dim=0), rtol=1e-4, atol=1e-5)


def test_a_linear_map_that_detaches_a_part_is_not_taken_for_exact() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = WIDE(x)
            return y - 0.1 * y.detach()

    x = ua.Gaussian(MEAN, std=0.3)
    y = ua.propagate(Centred(), x)
    truth = 0.9 * 0.3 * WIDE.weight.norm(dim=1).expand(4, -1)
    assert float((y.std / truth - 1).abs().mean()) < 0.05  # 11% off with autograd's derivative


def numbered(x: Tensor) -> tuple[Tensor, Tensor]:
    """Its second output counts the items: some items alone would be counted otherwise."""
    return torch.tanh(LAYER(x)), torch.arange(len(x))


@pytest.mark.parametrize("method", ["hybrid", "linear", "sketch"])
def test_a_batch_is_not_cut_if_a_constant_depends_on_its_size(method: str) -> None:
    x = ua.Gaussian(MEAN, std=0.5)
    with pytest.raises(ValueError, match="depends on the batch's size"):
        ua.propagate(numbered, x, method, chunk=2)
    index = ua.propagate(numbered, x, method)[1]
    assert torch.equal(index, torch.arange(4))
