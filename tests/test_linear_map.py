"""The default is exact for maps that are linear, whatever the number of outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua


def linear_maps() -> dict[str, tuple[Callable[..., Any], tuple[int, ...]]]:
    torch.manual_seed(0)
    double = {"dtype": torch.float64}
    conv = nn.Conv2d(1, 1, 3, padding=1, **double)
    deep = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, **double),
        nn.BatchNorm2d(4, **double),
        nn.Conv2d(4, 1, 3, padding=1, **double),
    ).eval()
    mixing = nn.Linear(100, 70, **double)
    blur = torch.ones(1, 1, 5, 5, **double) / 25
    return {
        "a convolution": (conv, (2, 1, 12, 12)),
        "two convolutions": (deep, (3, 1, 12, 12)),
        "identity": (lambda x: x * 1, (2, 65)),
        "a dense layer": (mixing, (2, 100)),
        "a large image": (lambda x: F.conv2d(x, blur, padding=2), (1, 1, 96, 80)),
        "upsampled": (
            lambda x: F.interpolate(x, scale_factor=4.0, mode="bilinear"),
            (2, 3, 12, 12),
        ),
        "across the batch": (lambda x: x - x.mean(0), (5, 80)),
    }


MAPS = linear_maps()


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_linear_maps_are_exact(name: str, scale: float) -> None:
    model, shape = MAPS[name]
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    var = scale * (0.1 + torch.rand(shape, generator=generator, dtype=torch.float64))
    y = ua.propagate(model, ua.Gaussian(mean, var))
    with torch.no_grad():
        offset = model(torch.zeros(shape, dtype=torch.float64))
        expected = torch.zeros_like(offset)
        units = torch.eye(mean.numel(), dtype=torch.float64)
        for part in units.split(64):
            if name == "across the batch":
                columns = torch.stack([model(unit.view(shape)) - offset for unit in part])
            else:
                joined = part.view(-1, *shape[1:])
                columns = (model(joined) - offset[:1]).view(len(part), *offset.shape)
            weights = (part * var.flatten()).sum(1).view(-1, *[1] * offset.ndim)
            expected += (columns.square() * weights).sum(0)
    torch.testing.assert_close(y.mean + 0, model(mean).detach())
    torch.testing.assert_close(y.var + 0, expected, rtol=1e-6, atol=1e-12)
    assert y.provenance.method == "linear"
    assert "linear over the noise" in y.provenance.reason


@pytest.mark.parametrize(
    "bend", [torch.relu, torch.tanh, lambda x: x + 0.02 * x**3, lambda x: x * x.sigmoid()]
)
def test_maps_that_bend_are_not_taken_for_linear(bend: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(70, 70).double()
    x = ua.Gaussian(torch.zeros(2, 70, dtype=torch.float64), 1.0)
    y = ua.propagate(lambda t: bend(layer(t)), x)
    assert y.provenance.method != "linear"


def test_shared_noise_through_a_linear_map_is_exact() -> None:
    conv = nn.Conv2d(1, 1, 3, padding=1).double()
    mean = torch.randn(2, 1, 40, 40, dtype=torch.float64)
    factors = torch.randn(3, 2, 1, 40, 40, dtype=torch.float64)
    y = ua.propagate(conv, ua.Gaussian.from_factors(mean, factors))
    with torch.no_grad():
        columns: Tensor = torch.stack([conv(f) - conv(torch.zeros_like(f)) for f in factors])
    torch.testing.assert_close(y.var + 0, columns.square().sum(0), rtol=1e-6, atol=1e-12)


def test_some_outputs_of_a_linear_map_are_exact() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(100, 90).double()
    x = ua.Gaussian(torch.randn(2, 100, dtype=torch.float64), 0.5)
    y = ua.propagate(layer, x, outputs=list(range(5, 75)))
    expected = 0.5 * layer.weight.square().sum(1)[5:75].expand(2, -1)
    torch.testing.assert_close(y.var + 0, expected.detach(), rtol=1e-9, atol=0)


def _beside_large_ones(x: Any) -> Any:
    return torch.cat([1e4 * x, x**2], 1)


def _of_other_noise(x: Any) -> Any:
    return torch.cat([x[:, :40], x[:, 40:] ** 2], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_output_that_bends_is_noticed_beside_large_ones(dtype: torch.dtype) -> None:
    zeros = torch.zeros(1, 80, dtype=dtype)
    y = ua.propagate(_beside_large_ones, ua.Gaussian(zeros, std=0.1))
    assert float(y.std[0, 80:].mean()) == pytest.approx(0.01 * 2**0.5, rel=0.3)
    std = torch.where(torch.arange(80) < 40, 1e4, 1.0).to(dtype)
    y = ua.propagate(_of_other_noise, ua.Gaussian(zeros, std=std))
    assert float(y.std[0, 40:].mean()) == pytest.approx(2**0.5, rel=0.3)
    means = torch.tensor([[0.0], [1e4]], dtype=dtype).expand(2, 80)
    y = ua.propagate(torch.square, ua.Gaussian(means, std=0.1))
    assert float(y.std[0].mean()) == pytest.approx(0.01 * 2**0.5, rel=0.3)


@pytest.mark.parametrize("std", [1e-5, 1e-3, 0.1, 10.0])
def test_rounding_is_not_taken_for_a_bend(std: float) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1) for i in range(6)]
    x = ua.Gaussian(torch.randn(2, 3, 8, 8), std=std)
    for model in (nn.Sequential(*layers), lambda x: torch.fft.ifft(torch.fft.fft(x)).real):
        assert ua.propagate(model, x).provenance.method == "linear"
