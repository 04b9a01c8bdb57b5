"""The picture of a comparison: errors against cost. Needs ``uaprop[plot]``."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..check.comparison import Comparison, Row
from .style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, grid, save

__all__ = ["draw"]

_SIZE = (11.0, 5.0)
_COLOURS = (BLUE, RED, GREEN, ORANGE, BLACK)
_MARKERS = "osD^vPX"
_LOWEST = 0.3  # errors below this share of the truth's noise are drawn there


def draw(comparison: Comparison, path: Path | None = None) -> Figure:
    """Errors of deviation and mean against time, a marker for each method, Monte Carlo's as a line.

    The shaded part is below the truth's own noise, where nothing can be told apart.

    Args:
        comparison: what to show; methods that failed are left out.
        path: the file to write, if any; its ending says the format.

    Returns:
        The figure.
    """
    made: list[Figure] = []

    def fill(figure: Figure) -> None:
        made.append(figure)
        rows = [row for row in comparison.rows if row.errors is not None]
        panels = grid(figure, 1, 2, sharex=True)
        _panel(panels[0], comparison, rows, deviation=True)
        _panel(panels[1], comparison, rows, deviation=False)
        handles, labels = panels[0].get_legend_handles_labels()
        columns = min(len(labels), 5)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        figure.suptitle(
            f"{comparison.outputs:,} outputs against {comparison.samples:,} Monte Carlo draws"
        )

    save(fill, _SIZE, *(() if path is None else (path,)))
    return made[0]


def _panel(axes: Axes, comparison: Comparison, rows: list[Row], *, deviation: bool) -> None:
    noise = comparison.noise.std_error if deviation else comparison.noise.mean_error
    curve = [
        (point.passes, point.std_error if deviation else point.mean_error)
        for point in comparison.monte_carlo
        if point.std_error is not None or not deviation
    ]
    axes.plot(*zip(*curve, strict=True), color=GREY, label="Monte Carlo", zorder=1)
    errors = []
    for number, row in enumerate(rows):
        assert row.errors is not None
        assert row.passes is not None
        error = row.errors.std_error if deviation else row.errors.mean_error
        errors.append(max(error, _LOWEST * noise))
        axes.plot(
            row.passes,
            errors[-1],
            _MARKERS[number % len(_MARKERS)],
            color=_COLOURS[number % len(_COLOURS)],
            markersize=9,
            markeredgecolor="white",
            markeredgewidth=0.6,
            label=row.label,
        )
    axes.axhspan(1e-30, noise, color=GREY, alpha=0.15, linewidth=0, label="below the truth's noise")
    bottom, top = min(noise, *errors, noise / 1.5), max([1.0, *errors])
    axes.set(xscale="log", yscale="log", ylim=(bottom / 1.5, top * 1.5))
    axes.set_xlabel("time (1 = one plain forward pass)")
    axes.xaxis.set_major_formatter("{x:g}")
    if deviation:
        axes.set(title="Standard deviation", ylabel="error: mean of |std/σ − 1|")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    else:
        axes.set(title="Mean", ylabel="error: mean of |mean − μ|/σ")
        axes.yaxis.set_major_formatter("{x:g}")
