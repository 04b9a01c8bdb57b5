"""The demonstration's picture. Needs ``uaprop[plot]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..gaussian import Gaussian
from ..plot.style import BLACK, BLUE, GREY, ORANGE, save
from .comparison import Comparison

__all__ = ["draw"]

_COLUMNS = 2
_WIDTH = 0.4
_METHODS = ("report's method (diagonal)", "Monte Carlo")


def draw(comparison: Comparison, path: Path) -> None:
    """Each digit's mean picture, a noisy draw of it, and its class probabilities with error bars.

    Args:
        comparison: what to show.
        path: the file to write; its ending says the format.
    """
    rows = -(-len(comparison.labels) // _COLUMNS)

    def fill(figure: Figure) -> None:
        layout = figure.add_gridspec(rows, 3 * _COLUMNS, width_ratios=[1, 1, 3] * _COLUMNS)
        for index in range(len(comparison.labels)):
            row, column = divmod(index, _COLUMNS)
            places = [figure.add_subplot(layout[row, 3 * column + step]) for step in range(3)]
            _digit(places, comparison, index)
        handles, labels = figure.axes[2].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=11)
        figure.suptitle(
            "How sure is the network? Class probabilities ± one standard deviation (cut at 0 and 1)"
        )

    save(fill, (14, 2.5 * rows + 0.8), path)


def _digit(places: Sequence[Axes], comparison: Comparison, index: int) -> None:
    clean, noisy, bars = places
    _picture(clean, comparison.pictures.loc[index, 0], "mean")
    _picture(noisy, comparison.seen[index, 0], "as seen")
    bars.grid(visible=False, axis="x")
    answers = (comparison.diagonal, comparison.sampled)
    for side, answer, colour, name in zip((-1, 1), answers, (BLUE, ORANGE), _METHODS, strict=True):
        _bars(bars, answer, index, side * _WIDTH / 2, colour, name)
    bars.set(ylim=(0, 1.08), yticks=(0, 0.5, 1), xticks=range(10), xlabel="class")
    bars.set_ylabel("probability")
    true, predicted = int(comparison.labels[index]), int(comparison.predicted[index])
    bars.set_title(f"true {true}, predicted {predicted}", fontsize=11)


def _picture(axes: Axes, values: Tensor, title: str) -> None:
    axes.imshow(values.numpy(), cmap="gray", vmin=0, vmax=1)
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
        _WIDTH,
        yerr=reach.numpy(),
        color=colour,
        label=name,
        error_kw={"ecolor": BLACK, "elinewidth": 1.3, "capsize": 3},
    )
