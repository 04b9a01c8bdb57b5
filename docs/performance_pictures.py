"""The pictures of docs/performance.md: ratios beside their bounds, and how cost grows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from uaprop.plot.style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, grid, save

__all__ = ["draw_ratios", "draw_scaling"]

IMAGES = Path(__file__).parent / "images"
LOOKS = {
    "plain": (GREY, "s"),
    "diagonal": (GREEN, "v"),
    "sketch": (ORANGE, "^"),
    "adjoint": (BLUE, "o"),
    "hybrid": (RED, "D"),
}
LABELS = {
    "depth": "depth (convolutions)",
    "width": "width (channels)",
    "resolution": "resolution (pixels along a side)",
    "batch": "batch",
    "probes": "probes or draws",
    "outputs": "outputs",
}


def draw_ratios(rows: list[dict[str, Any]]) -> None:
    """Every ratio that has a bound, in units of that bound."""
    bounded = [row for row in rows if row["bound"] is not None]
    size = (10, 1.6 + 0.42 * len(bounded))
    save(partial(_ratios, rows=bounded), size, IMAGES / "ratios.png")


def _ratios(figure: Figure, rows: list[dict[str, Any]]) -> None:
    (axes,) = grid(figure, 1, 1)
    colours = {True: GREEN, False: RED, None: GREY}
    for place, row in enumerate(rows):
        share = row["ratio"] / row["bound"]
        axes.barh(place, share, height=0.6, color=colours[row["met"]])
        note = ", not judged" if row["met"] is None else ""
        text = f"{row['ratio']:.2f} of {row['bound']:g}{note}"
        axes.text(max(share, 1) + 0.02, place, text, va="center", fontsize=9)
    axes.axvline(1, color=BLACK, linewidth=1.2)
    names = [f"{row['what'].replace('`', '')}\n{row['network']}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_xlim(0, 1.3 * max(1.0, *(row["ratio"] / row["bound"] for row in rows)))
    axes.set_xlabel("ratio to the plain pass or step, as a share of the bound")
    axes.grid(False, axis="y")
    axes.invert_yaxis()
    figure.suptitle("Ratios beside their bounds: green keeps it, red does not")


def draw_scaling(result: dict[str, Any]) -> None:
    """A panel for each size that is varied."""
    save(partial(_scaling, result=result), (13, 8), IMAGES / "scaling.png")


def _scaling(figure: Figure, result: dict[str, Any]) -> None:
    panels = grid(figure, 2, 3, sharey=True)
    for panel, (axis, found) in zip(panels, result["axes"].items(), strict=True):
        _panel(panel, axis, found)
    for first in (panels[0], panels[3]):
        first.set_ylabel("time, ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle("Cost of a pass, and (dotted) its work, scaled to the largest size")


def _panel(axes: Axes, axis: str, found: dict[str, Any]) -> None:
    sizes = found["sizes"]
    for name, (colour, marker) in LOOKS.items():
        times = [1e3 * t for t in found["seconds"][name]]
        work = found["work"][name]
        expected = [times[-1] * w / work[-1] for w in work]
        axes.plot(sizes, expected, color=colour, linestyle=":", linewidth=1.2)
        axes.plot(sizes, times, color=colour, marker=marker, markersize=5, label=name)
    axes.set(xscale="log", yscale="log", xlabel=LABELS[axis])
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
