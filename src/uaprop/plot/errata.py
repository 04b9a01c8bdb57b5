"""The report's errata: as printed, as the library computes it, and as Monte Carlo finds it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..gaussian import Gaussian
from ..nn import UAAvgPool2d, UABCELoss, UAReLU, UASigmoid
from .style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, grid

__all__ = ["errata"]

_BATCHES = 50  # of draws, whose spread gives the standard error
_FEW, _MANY = 4_000, 400_000
_BCE_DEVIATION = 2.0
_SIGMOID_DEVIATION = 3.0
_LAMBDAS = ((0.368, "λ = 0.368", ORANGE), (3 / math.pi**2, "λ = 3/π²", GREEN))
_LIBRARY: dict[str, Any] = {"color": BLUE, "label": "corrected (library)"}
_PRINTED: dict[str, Any] = {"color": RED, "linestyle": "--", "label": "as printed"}


def errata(figure: Figure) -> None:
    """ReLU's variance, expected BCE for two labels, average pooling, and the sigmoid's mean."""
    panels = grid(figure, 2, 3)
    _relu(panels[0])
    _cross_entropy(panels[1], label=0)
    _cross_entropy(panels[2], label=1)
    _pooling(panels[3])
    _sigmoid(panels[4])
    _sigmoid_error(panels[5])
    figure.suptitle("Errata of the report: printed, corrected, and Monte Carlo")


# ------------------------------------------------------------ the report, word for word


def _printed_relu_variance(mean: Tensor, std: float) -> Tensor:
    """Eq. 20. Its second term has the wrong sign; it should be added."""
    bell = torch.exp(-(mean**2) / (2 * std**2))
    erf = 1 + torch.erf(mean / math.sqrt(2 * std**2))
    mu_h = math.sqrt(std**2 / (2 * math.pi)) * bell + mean / 2 * erf
    square = (std**2 + mean**2) / 2 * erf - mean * std / math.sqrt(2 * math.pi) * bell
    return square - mu_h**2


def _printed_cross_entropy(mean: Tensor, std: float, label: int) -> Tensor:
    """Eq. 30. Its second and third terms both have the wrong sign."""
    s = torch.sigmoid(mean)
    return -torch.log(s) - 0.5 * s * (1 - s) * std**2 - (1 - label) * mean


def _printed_pooling_variance(variances: Tensor) -> tuple[float, float]:
    """The middle and the final expression of V[f(x)]; they differ, and the final one is right."""
    k_squared = variances.numel()
    return float(variances.sum() / k_squared), float(variances.sum() / k_squared**2)


# ------------------------------------------------------------ panels


def _relu(axes: Axes) -> None:
    means = torch.linspace(-3, 3, 241, dtype=torch.float64)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.plot(means, _printed_relu_variance(means, 1.0), **_PRINTED)
    axes.plot(means, UAReLU()(Gaussian(means, var=1.0)).cov.var, **_LIBRARY)
    _points(axes, torch.relu, means[::24], 1.0, torch.var)
    axes.set(title="1. Variance of ReLU, σ = 1", xlabel="input mean μ", ylabel="Var[max(0, x)]")
    axes.legend(loc="upper left")


def _cross_entropy(axes: Axes, label: int) -> None:
    means = torch.linspace(-6, 6, 241, dtype=torch.float64)
    score = Gaussian(means, std=_BCE_DEVIATION)
    target = torch.full_like(means, label)
    axes.axhline(0, color=GREY, linewidth=0.8)
    printed = _printed_cross_entropy(means, _BCE_DEVIATION, label)
    axes.plot(means, printed, **_PRINTED)
    taylor = UABCELoss("report", reduction="none")(score, target)
    axes.plot(means, taylor, color=GREEN, linestyle="-.", label="signs corrected (Taylor)")
    axes.plot(
        means, UABCELoss(reduction="none")(score, target), color=BLUE, label="exact (library)"
    )

    def loss(x: Tensor) -> Tensor:
        target = torch.full_like(x, label)
        return F.binary_cross_entropy_with_logits(x, target, reduction="none")

    _points(axes, loss, means[::20], _BCE_DEVIATION, torch.mean)
    title = f"2. Expected cross-entropy, σ = {_BCE_DEVIATION:g}, y = {label}"
    axes.set(title=title, xlabel="mean score μ", ylabel="E[ℓ(x)] (nats)")
    axes.legend(loc="upper right")


def _pooling(axes: Axes) -> None:
    sizes = (2, 3, 4)
    places = torch.arange(len(sizes), dtype=torch.float64)
    windows = [torch.ones(1, 1, k, k, dtype=torch.float64) for k in sizes]
    printed = [_printed_pooling_variance(window) for window in windows]
    library = [
        float(UAAvgPool2d(k)(Gaussian(window, var=window)).cov.var)
        for k, window in zip(sizes, windows, strict=True)
    ]
    middle, final = zip(*printed, strict=True)
    width = 0.26
    axes.bar(places - width, middle, width, color=RED, label="printed, middle: 1/k² Σσ²")
    axes.bar(places, final, width, color=ORANGE, label="printed, final: 1/k⁴ Σσ²")
    axes.bar(places + width, library, width, color=BLUE, label="library")
    sampled = [_sampled(_average, window, 1.0, torch.var) for window in windows]
    centres = [float(mean) for mean, _ in sampled]
    errors = [float(error) for _, error in sampled]
    _errorbar(axes, places + width, centres, errors)
    axes.grid(visible=False, axis="x")
    axes.set_xticks(places, [f"{k} × {k}" for k in sizes])
    axes.set(title="3. Variance of average pooling, σ = 1", xlabel="window", ylim=(0, 1.5))
    axes.set_ylabel("Var[average]")
    axes.legend(loc="upper center", ncols=2, columnspacing=1.2, handlelength=1.4)


def _average(windows: Tensor) -> Tensor:
    return F.avg_pool2d(windows.flatten(0, 2), windows.shape[-1]).flatten()


def _sigmoid(axes: Axes) -> None:
    means = torch.linspace(-8, 8, 241, dtype=torch.float64)
    score = Gaussian(means, std=_SIGMOID_DEVIATION)
    for lam, name, colour in _LAMBDAS:
        axes.plot(means, UASigmoid("report", lam)(score).loc, "--", color=colour, label=name)
    axes.plot(means, UASigmoid()(score).loc, color=BLUE, label="exact (library)")
    _points(axes, torch.sigmoid, means[::20], _SIGMOID_DEVIATION, torch.mean)
    title = f"4. Mean of the sigmoid, σ = {_SIGMOID_DEVIATION:g}: λ is not given"
    axes.set(title=title, xlabel="input mean μ", ylabel="E[s(x)]")
    axes.legend(loc="upper left")


def _sigmoid_error(axes: Axes) -> None:
    means = torch.linspace(-8, 8, 241, dtype=torch.float64)
    score = Gaussian(means, std=_SIGMOID_DEVIATION)
    exact = UASigmoid()(score).loc
    for lam, name, colour in _LAMBDAS:
        error = UASigmoid("report", lam)(score).loc - exact
        axes.plot(means, error, "--", color=colour, label=name)
    axes.plot(means, torch.zeros_like(means), color=BLUE, label="exact (library)")
    some = means[::20]
    centre, error = _sampled(torch.sigmoid, some, _SIGMOID_DEVIATION, torch.mean, _MANY)
    _errorbar(axes, some, centre - exact[::20], error)
    title = f"4. The same, minus the exact mean, σ = {_SIGMOID_DEVIATION:g}"
    axes.set(title=title, xlabel="input mean μ", ylabel="difference of E[s(x)]")
    axes.set_ylim(-0.025, 0.032)
    axes.legend(loc="upper left", ncols=2)


# ------------------------------------------------------------ Monte Carlo


def _sampled(
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    std: float,
    statistic: Callable[..., Tensor],
    draws: int = _FEW,
) -> tuple[Tensor, Tensor]:
    """``torch.mean`` or ``torch.var`` of ``function(x)``, and its standard error, over batches."""
    generator = torch.Generator().manual_seed(0)
    outputs = function(Gaussian(mean, std=std).sample(draws, generator=generator))
    batches = statistic(outputs.unflatten(0, (_BATCHES, -1)), dim=1)
    return batches.mean(0), batches.std(0) / math.sqrt(_BATCHES)


def _points(
    axes: Axes,
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    std: float,
    statistic: Callable[..., Tensor],
) -> None:
    centre, error = _sampled(function, mean, std, statistic)
    _errorbar(axes, mean, centre, error)


def _errorbar(
    axes: Axes, x: Tensor, centre: Tensor | list[float], error: Tensor | list[float]
) -> None:
    """Points with bars of two standard errors."""
    axes.errorbar(
        x.numpy(),
        torch.as_tensor(centre).numpy(),
        yerr=2 * torch.as_tensor(error).numpy(),
        fmt="o",
        color=BLACK,
        markersize=3.5,
        capsize=3,
        linewidth=1.2,
        zorder=5,
        label="Monte Carlo ± 2 s.e.",
    )
