"""Corners that were wrong once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import uaprop as ua


def test_views_follow_the_mean_whatever_the_variances_layout() -> None:
    per_channel = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    x = ua.Gaussian(torch.rand(2, 3, 4, 4), var=per_channel)
    assert x.view(2, -1).shape == (2, 48)
    assert torch.equal(x.view(2, -1).var, per_channel.expand(2, 3, 4, 4).reshape(2, -1))
    assert F.softmax(x, 1).view(2, -1).shape == (2, 48)
    mean = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    y = nn.Conv2d(3, 4, 3)(ua.Gaussian(mean, torch.ones(2, 3, 4, 4)))
    assert y.permute(0, 2, 3, 1).view(2, -1).shape == (2, 16)


def test_the_reports_network_can_be_sampled() -> None:
    network = nn.Sequential(ua.nn.UALinear(3, 2), ua.nn.UAReLU())
    y = ua.propagate(network, ua.Gaussian(torch.zeros(4, 3), 1.0), method="samples", samples=50)
    assert y.shape == (4, 2)


def test_sampling_a_large_output_takes_small_chunks() -> None:
    rows: list[int] = []

    def decoder(x: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return x.sum(1, keepdim=True) + torch.zeros(2**17)

    x = ua.Gaussian(torch.zeros(1, 2**10), 1.0)
    y = ua.propagate(decoder, x, method="samples", samples=40)
    assert y.shape == (1, 2**17)
    assert max(rows) <= 2


def test_sampling_refuses_one_draws_value_as_a_constant() -> None:
    x = ua.Gaussian(torch.ones(3), 1.0)
    with pytest.raises(ua.UnsupportedOperation, match="a float: it depends on the noise"):
        ua.propagate(lambda t: t.sum().item(), x, method="samples", samples=5)
    with pytest.raises(TypeError, match="a whole number"):
        ua.propagate(nn.ReLU(), x, method="samples", samples=1e3)


def test_sampled_results_convert_and_map() -> None:
    x = ua.Gaussian(torch.zeros(2, 3), 1.0)
    y = ua.propagate(nn.Identity(), x, method="samples", samples=20)
    assert y.double().covariance().dtype == torch.float64
    assert torch.equal(y.detach().covariance(), y.covariance())
    moved = torch.utils._pytree.tree_map(lambda t: t.double(), y)
    assert torch.equal(moved.covariance(), y.covariance().double())
    with pytest.raises(ua.UnsupportedOperation, match="answer of a method"):
        torch.utils._pytree.tree_map(lambda t: 2 * t, y)


def test_conversions_stay_floating() -> None:
    x = ua.Gaussian(torch.tensor([1.5]), 0.5)
    for convert in (
        lambda: x.view(torch.int32),
        lambda: x.type_as(torch.tensor(1)),
        lambda: x.to(torch.tensor(1)),
        lambda: x.sum(dtype=torch.int32),
    ):
        with pytest.raises(ua.UnsupportedOperation, match="cannot have the dtype"):
            convert()


def test_construction_looks_closer() -> None:
    with pytest.raises(ValueError, match="square of std"):
        ua.Gaussian(torch.ones(2), std=1e25)
    with pytest.raises(TypeError, match="real"):
        ua.Gaussian(torch.ones(1), torch.tensor([1j]))
    with pytest.raises(TypeError, match="var is a Gaussian"):
        ua.Gaussian(torch.ones(1), ua.Gaussian(1.0, 1.0))
    assert "meta" in repr(ua.Gaussian(torch.ones(2, device="meta"), 1.0))


def test_scales_do_not_overflow_on_the_way() -> None:
    assert torch.equal((ua.Gaussian(torch.ones(3), 0.0) * 1e25).var, torch.zeros(3))
    tiny = (ua.Gaussian(torch.ones(3), 1e38) * 1e-25).var
    torch.testing.assert_close(tiny, torch.full((3,), 1e-12))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mean_and_variance_share_a_dtype(dtype: torch.dtype) -> None:
    x = ua.Gaussian(torch.ones(2, 3).to(dtype), 1.0)
    for y in (nn.BatchNorm1d(3).eval()(x), x * torch.ones(3), x + torch.ones(3)):
        assert y.loc.dtype == y.cov.var.dtype


def test_softplus_with_a_low_threshold_is_refused() -> None:
    with pytest.raises(ua.UnsupportedOperation, match="threshold"):
        F.softplus(ua.Gaussian(torch.ones(1), 1.0), 1.0, 1.0)


def test_numpy_numbers_on_the_left() -> None:
    x = ua.Gaussian(torch.ones(3), 1.0)
    for y in (np.float64(2) * x, np.float32(2) * x):
        assert torch.equal(y.var, torch.full((3,), 4.0))


def test_shape_does_not_change_in_place() -> None:
    x = ua.Gaussian(torch.ones(1, 3), 1.0)
    for change in (x.squeeze_, lambda: x.unsqueeze_(0), x.t_):
        with pytest.raises(ua.UnsupportedOperation, match="in place"):
            change()
    with pytest.raises(ua.UnsupportedOperation, match="floor_divide"):
        _ = x // 2
    with pytest.raises(ua.UnsupportedOperation, match="index is random"):
        x[x] = 0.0


def test_gradient_of_a_sample_is_finite_at_zero_variance() -> None:
    var = torch.zeros(3, requires_grad=True)
    ua.Gaussian(torch.ones(3), var).sample(2).sum().backward()
    assert torch.isfinite(var.grad).all()


def test_models_export_on_gaussians() -> None:
    x = ua.Gaussian(torch.randn(2, 3), 1.0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    y = torch.export.export(model, (x,)).module()(x)
    torch.testing.assert_close(y.loc, model(x).loc)
    torch.testing.assert_close(y.cov.var, model(x).cov.var)
