"""What every figure has in common: colours, sizes, and how it is saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["BLACK", "BLUE", "GREEN", "GREY", "ORANGE", "RED", "by_deviation", "grid", "save"]

# Okabe & Ito (2008): distinguishable with every common form of colour blindness.
BLACK = "#000000"
BLUE = "#0072B2"
GREEN = "#009E73"
ORANGE = "#E69F00"
RED = "#D55E00"
GREY = "#7A7A7A"

_DPI = 160
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 12,
    "figure.constrained_layout.h_pad": 0.09,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.titlesize": 14,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.alpha": 0.6,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "image.interpolation": "nearest",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "mathtext.fontset": "dejavusans",
    "svg.fonttype": "path",
    "svg.hashsalt": "uaprop",
}


def by_deviation(count: int) -> list[Any]:
    """``count`` colours in order of growing deviation: dark to light, also in greyscale."""
    ramp = mpl.colormaps["plasma"]
    return [ramp(0.05 + 0.75 * step / max(count - 1, 1)) for step in range(count)]


def grid(figure: Figure, rows: int, columns: int, **options: Any) -> list[Axes]:
    """The axes of a regular grid, row by row."""
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return [one for row in axes for one in row]


def save(
    draw: Callable[[Figure], None], size: tuple[float, float], *paths: Path
) -> tuple[Path, ...]:
    """Draw one figure and write it to every path, in the format of its ending.

    The same library and matplotlib give the same bytes: no dates, no random identifiers.

    Args:
        draw: fills an empty figure.
        size: width and height in inches.
        *paths: files to write; their folders exist.

    Returns:
        The paths.
    """
    with mpl.rc_context():
        mpl.rcdefaults()  # the caller's own style must not leak in
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
        draw(figure)
        figure.draw_without_rendering()  # lays it out, once for all formats
        figure.set_layout_engine("none")
        for path in paths:
            undated: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
            figure.savefig(path, dpi=_DPI, metadata=undated)
    return paths
