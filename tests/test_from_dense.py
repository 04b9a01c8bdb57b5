"""Inputs with a dense covariance, of each batch element or one for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua

EXACT: dict[str, dict[str, Any]] = {
    "full": {},
    "linear": {},
    "adjoint": {"probes": 4},
    "hybrid": {"samples": 8},
    "auto": {},
}


def covariances(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(*shape, shape[-1], generator=generator)
    return root @ root.mT


def test_it_has_the_covariance_it_was_given() -> None:
    mean, cov = torch.randn(4, 2, 3), covariances(4, 6)
    x = ua.Gaussian.from_dense(mean, cov)
    torch.testing.assert_close(x.covariance(), cov)
    torch.testing.assert_close(x.cov.var, cov.diagonal(dim1=1, dim2=2).reshape(4, 2, 3))
    shared = ua.Gaussian.from_dense(mean, cov[0])
    torch.testing.assert_close(shared.covariance(), cov[:1].expand(4, 6, 6))
    vector = ua.Gaussian.from_dense(mean[0, 0], cov[0, :3, :3])
    torch.testing.assert_close(vector.covariance(), cov[0, :3, :3])
    assert "dense" in repr(vector)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("each", [True, False])
def test_linear_maps_carry_it_exactly(method: str, each: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 3)
    cov = covariances(4, 6) if each else covariances(6)
    x = ua.Gaussian.from_dense(torch.randn(4, 6), cov)
    y = ua.propagate(layer, x, method, **EXACT[method])
    weight = layer.weight.detach()
    wanted = (weight @ cov @ weight.mT).expand(4, 3, 3)
    torch.testing.assert_close(y.covariance(), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y.loc, layer(x.loc), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("each", [True, False])
def test_samples_have_it(each: bool) -> None:
    cov = covariances(2, 4) if each else covariances(4)
    x = ua.Gaussian.from_dense(torch.zeros(2, 4), cov)
    y = ua.propagate(nn.Identity(), x, "samples", samples=40_000)
    torch.testing.assert_close(y.covariance(), cov.expand(2, 4, 4), rtol=0.05, atol=0.1)
    across = x.sample(40_000, generator=torch.Generator().manual_seed(0))
    between = (across[:, 0, :, None] * across[:, 1, None, :]).mean(0)
    assert between.abs().max() < 0.1 * cov.abs().max()  # batch elements are independent


def test_probes_have_it_on_average() -> None:
    cov = covariances(4)
    x = ua.Gaussian.from_dense(torch.zeros(2, 4), cov)
    y = ua.propagate(nn.Identity(), x, "sketch", probes=4096)
    torch.testing.assert_close(y.covariance(), cov.expand(2, 4, 4), rtol=0.1, atol=0.3)


@pytest.mark.parametrize("method", ["diagonal", "calibrated"])
def test_methods_of_independent_elements_refuse_it(method: str) -> None:
    x = ua.Gaussian.from_dense(torch.zeros(2, 4), covariances(4))
    options = {}
    if method == "calibrated":
        options["calibration"] = ua.calibrate(nn.ReLU(), ua.Gaussian(torch.zeros(2, 4), 1.0))
    with pytest.raises(TypeError, match="independent elements; an input has a dense covariance"):
        ua.propagate(nn.ReLU(), x, method, **options)


def test_operations_outside_of_a_method_say_what_to_do() -> None:
    x = ua.Gaussian.from_dense(torch.zeros(2, 4), covariances(4))
    with pytest.raises(ua.UnsupportedOperation, match=r"ua\.propagate\(model, x\)"):
        nn.Linear(4, 2)(x)
    torch.testing.assert_close(x[1:, :2].covariance(), covariances(4)[None, :2, :2])


@pytest.mark.parametrize(
    ("covariance", "words"),
    [
        (torch.eye(3), r"covariance of shape \(2, 4, 4\), or \(4, 4\)"),
        (torch.eye(8), "not \\(8, 8\\)"),
        (torch.eye(4).expand(3, 4, 4), "not \\(3, 4, 4\\)"),
        (-torch.eye(4), "negative variance"),
        (torch.diag(torch.tensor([1e8, 1.0, 1.0, -1.0])), "negative variance, -1"),
        (torch.eye(4) - torch.full((4, 4), 0.9).fill_diagonal_(0), "not positive semi-definite"),
        (torch.ones(4, 4).triu(), "not symmetric"),
        (torch.full((4, 4), torch.nan), "infinite or NaN"),
        (torch.stack([torch.eye(4), -1e-2 * torch.eye(4)]), "negative variance, -0.01"),
    ],
)
def test_what_is_no_covariance_is_refused(covariance: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ua.Gaussian.from_dense(torch.zeros(2, 4), covariance)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="float32 or float64"):
        ua.Gaussian.from_dense(torch.zeros(2, dtype=torch.float16), torch.eye(2))
    with pytest.raises(TypeError, match="is a Gaussian"):
        ua.Gaussian.from_dense(torch.zeros(2), ua.Gaussian(torch.eye(2), 1.0))
    with pytest.raises(TypeError, match="must be real"):
        ua.Gaussian.from_dense(torch.zeros(2), torch.eye(2, dtype=torch.complex64))


def test_a_singular_covariance_is_one_to_rounding() -> None:
    root = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    x = ua.Gaussian.from_dense(torch.zeros(3, 6), root @ root.T)
    assert x.sample(5).isfinite().all()
    zero = ua.Gaussian.from_dense(torch.ones(3, 6), torch.zeros(6, 6))
    assert (zero.sample(2) == 1).all()


def test_a_representation_is_not_a_public_way_to_make_one() -> None:
    assert not hasattr(ua.Gaussian, "from_covariance")
