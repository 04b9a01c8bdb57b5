"""The angle between vectors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import uaprop as ua


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch"])
def test_a_cosine_stays_between_its_bounds_for_unequal_variances(method: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal() -> torch.Tensor:
        return torch.randn((2, 32, 4), generator=generator, dtype=torch.float64)

    x = ua.Gaussian(normal() * torch.exp(2 * normal()), torch.exp(4 * normal()))
    y = ua.propagate(lambda x: F.cosine_similarity(x[0], x[1], 1), x, method=method)
    assert (y.loc.abs() <= 1).all()
    assert (y.var <= 1 - y.loc.square() + 1e-12).all()


def test_a_cosine_of_unequal_variances_is_close_to_monte_carlo() -> None:
    mean = torch.tensor([[[0.0, 0, 0, 50], [1, 2, 3, 4]], [[1, 0, 0, 40], [0, 1, -2, 3]]])
    var = torch.tensor(
        [[[1.0, 1, 1, 100], [0.01, 0.3, 2, 0.01]], [[4.0, 1, 1, 9], [1, 0.1, 0.1, 0.5]]]
    )
    x = ua.Gaussian(mean.double(), var.double())
    truth = ua.propagate(
        lambda x: F.cosine_similarity(x[0], x[1], 1), x, method="samples", samples=40_000
    )
    y = F.cosine_similarity(x[0], x[1], 1)
    assert (y.std / truth.std - 1).abs().max() < 0.1
    assert ((y.loc - truth.loc).abs() / truth.std).max() < 0.05


def test_a_cosine_of_single_elements_is_a_product_of_signs() -> None:
    x = ua.Gaussian(torch.tensor([[[0.5]], [[-0.3]]], dtype=torch.float64), 1.0)
    y = F.cosine_similarity(x[0], x[1], 1)
    expected = torch.erf(torch.tensor(0.5 / 2**0.5)) * torch.erf(torch.tensor(-0.3 / 2**0.5))
    assert float(y.loc) == pytest.approx(float(expected), rel=1e-6)
    assert float(y.var) == pytest.approx(1 - float(expected) ** 2, rel=1e-6)
