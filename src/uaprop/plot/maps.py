"""The report's figures of ``UAConv2d`` and ``UAAvgPool2d``: maps in, maps out, on a photograph."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_image
from torch import Tensor

from ..gaussian import Gaussian
from ..nn import UAAvgPool2d, UAConv2d
from .style import grid

__all__ = ["uaavgpool2d", "uaconv2d"]

_READ, _GAIN = 0.02, 0.02  # the camera: variance 0.02² + 0.02 · intensity
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
_SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))
_POOL = 8


def uaconv2d(figure: Figure) -> None:
    """A Sobel filter as ``UAConv2d``: edges in the mean, the squared kernel in the variance."""
    layer = UAConv2d(1, 1, 3, bias=False).requires_grad_(False)
    layer.weight.copy_(torch.tensor(_SOBEL))
    x = _photograph()
    _maps(figure, x, layer(x), signed=True)
    figure.suptitle("UAConv2d: a horizontal Sobel filter (3 × 3) on a noisy photograph")


def uaavgpool2d(figure: Figure) -> None:
    """Average pooling: the mean keeps its scale, the variance falls by the window's size."""
    x = _photograph()
    _maps(figure, x, UAAvgPool2d(_POOL)(x), signed=False)
    figure.suptitle(f"UAAvgPool2d: {_POOL} × {_POOL} average pooling of a noisy photograph")


def _photograph() -> Gaussian:
    """A grey photograph in [0, 1] as a camera sees it: read noise and shot noise."""
    colours = torch.tensor(load_sample_image("china.jpg"), dtype=torch.float32) / 255
    grey = (colours @ torch.tensor(_LUMA))[60:316, 180:500]
    return Gaussian(grey[None, None], _READ**2 + _GAIN * grey[None, None])


def _maps(figure: Figure, x: Gaussian, y: Gaussian, *, signed: bool) -> None:
    figure.set_layout_engine("compressed")  # colour bars as high as their pictures
    axes = grid(figure, 2, 2)
    _map(axes[0], x.loc, "Input mean", "gray", "intensity (1 = white)")
    _map(
        axes[2], 1000 * x.cov.var, "Input variance: read + shot noise", "viridis", "10⁻³ intensity²"
    )
    if signed:
        reach = float(y.loc.abs().quantile(0.995))
        _map(axes[1], y.loc, "Output mean", "RdBu_r", "intensity difference", (-reach, reach))
        unit = "10⁻³ (intensity difference)²"
    else:
        _map(axes[1], y.loc, "Output mean", "gray", "intensity (1 = white)")
        unit = "10⁻³ intensity²"
    _map(axes[3], 1000 * y.cov.var, "Output variance", "viridis", unit)


def _map(
    axes: Axes,
    values: Tensor,
    title: str,
    colours: str,
    unit: str,
    limits: tuple[float, float] | None = None,
) -> None:
    low, high = limits or (None, None)
    picture = axes.imshow(values[0, 0].numpy(), cmap=colours, vmin=low, vmax=high)
    axes.grid(visible=False)
    axes.set(title=title, xlabel="column (pixel)", ylabel="row (pixel)")
    bar = axes.figure.colorbar(picture, ax=axes, extend="both" if limits else "neither")
    bar.set_label(unit)
