"""The demonstration's picture. Needs ``uaprop[plot]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..gaussian import Gaussian
from ..plot.style import BLACK, BLUE, GREEN, GREY, ORANGE, save
from .comparison import Comparison

__all__ = ["draw"]

_COLUMNS = 2
_WIDTHS = (1, 1, 1, 3.6)
_BAR = 0.28


def draw(comparison: Comparison, path: Path) -> None:
    """Each digit's mean picture, a noisy draw of it, its attribution, and its class probabilities.

    Args:
        comparison: what to show.
        path: the file to write; its ending says the format.
    """
    rows = -(-len(comparison.labels) // _COLUMNS)
    size = len(_WIDTHS)

    def fill(figure: Figure) -> None:
        layout = figure.add_gridspec(rows, size * _COLUMNS, width_ratios=_WIDTHS * _COLUMNS)
        for index in range(len(comparison.labels)):
            row, column = divmod(index, _COLUMNS)
            places = [figure.add_subplot(layout[row, size * column + k]) for k in range(size)]
            _digit(places, comparison, index)
        handles, labels = figure.axes[size - 1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=12)
        figure.suptitle(
            "How sure is the network? Class probabilities ± one standard deviation (cut at 0 and 1)"
        )

    save(fill, (14.5, 2.5 * rows + 0.8), path)


def _digit(places: Sequence[Axes], comparison: Comparison, index: int) -> None:
    clean, noisy, blame, bars = places
    _picture(clean, comparison.pictures.loc[index, 0], "mean", "gray", 1)
    _picture(noisy, comparison.seen[index, 0], "as seen", "gray", 1)
    shares = comparison.attribution
    _picture(blame, shares[index], "attribution", "magma", float(shares.max()))
    bars.grid(visible=False, axis="x")
    _bars(bars, comparison.diagonal, index, -_BAR, BLUE, "report's method (diagonal)")
    _bars(bars, comparison.default, index, 0, GREEN, f"uaprop's default ({comparison.method})")
    _bars(bars, comparison.sampled, index, _BAR, ORANGE, "Monte Carlo")
    bars.set(ylim=(0, 1.08), yticks=(0, 0.5, 1), xticks=range(10), xlabel="class")
    bars.set_ylabel("probability")
    true, predicted = int(comparison.labels[index]), int(comparison.predicted[index])
    bars.set_title(f"true {true}, predicted {predicted}", fontsize=11)


def _picture(axes: Axes, values: Tensor, title: str, colours: str, brightest: float) -> None:
    axes.imshow(values.numpy(), cmap=colours, vmin=0, vmax=brightest)
    axes.set_title(title, fontsize=11)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set(visible=True, color=GREY)


def _bars(axes: Axes, answer: Gaussian, index: int, shift: float, colour: str, name: str) -> None:
    mean, std = answer.loc[index], answer.cov.var[index].sqrt()
    reach = torch.stack([torch.minimum(std, mean), torch.minimum(std, 1 - mean)]).clamp(min=0)
    axes.bar(
        (torch.arange(10) + shift).numpy(),
        mean.numpy(),
        _BAR,
        yerr=reach.numpy(),
        color=colour,
        label=name,
        error_kw={"ecolor": BLACK, "elinewidth": 1.1, "capsize": 2},
    )
