"""The report's figure of ``UAReLU``."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from ..gaussian import Gaussian
from ..nn import UAReLU
from .style import BLACK, by_deviation, grid

__all__ = ["uarelu"]

_DEVIATIONS = (0.5, 1.0, 1.5, 2.0)


def uarelu(figure: Figure) -> None:
    """Mean (dashed) and variance (dotted) of a rectified Gaussian against its input's mean."""
    means = torch.linspace(-5, 5, 401, dtype=torch.float64)
    left, right = grid(figure, 1, 2)
    left.plot(means, torch.relu(means), color=BLACK, label="ReLU (σ = 0)")
    right.plot(means, torch.zeros_like(means), color=BLACK, label="ReLU (σ = 0)")
    for deviation, colour in zip(_DEVIATIONS, by_deviation(len(_DEVIATIONS)), strict=True):
        out = UAReLU()(Gaussian(means, std=deviation))
        left.plot(means, out.loc, "--", color=colour, label=f"σ = {deviation:g}")
        right.plot(means, out.cov.var, ":", color=colour, linewidth=2.4, label=f"σ = {deviation:g}")
    left.set(title="Output mean", ylabel="E[max(0, x)]")
    right.set(title="Output variance", ylabel="Var[max(0, x)]")
    for axes in (left, right):
        axes.set(xlabel="input mean μ", xlim=(-5, 5))
        axes.legend(title="input deviation", loc="upper left")
    figure.suptitle("UAReLU: max(0, x) of a Gaussian x ~ N(μ, σ²)")
