"""The figures by name, and drawing them into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from . import cross_entropy, errata, maps, rectifier, style

__all__ = ["FIGURES", "Drawing", "draw"]


@dataclass(frozen=True)
class Drawing:
    """One figure: what it shows, its size in inches, and the function that draws it."""

    shows: str
    size: tuple[float, float]
    fill: Callable[[Figure], None]


FIGURES: Mapping[str, Drawing] = {
    "uarelu": Drawing("UAReLU: mean and variance", (10, 4.4), rectifier.uarelu),
    "uabce": Drawing("UABCELoss: expected cross-entropy", (10, 4.6), cross_entropy.uabce),
    "uaconv2d": Drawing("UAConv2d: maps of a photograph", (10, 7.3), maps.uaconv2d),
    "uaavgpool2d": Drawing("UAAvgPool2d: maps of a photograph", (10, 7.3), maps.uaavgpool2d),
    "errata": Drawing("Errata: printed and corrected", (14, 8.4), errata.errata),
}


def draw(folder: Path) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Draw every figure into a folder, which is made if need be.

    Args:
        folder: where ``NAME.png`` and ``NAME.svg`` go.

    Yields:
        Each figure's name and its files, as soon as they are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in FIGURES.items():
        files = (folder / f"{name}.png", folder / f"{name}.svg")
        yield name, style.save(drawing.fill, drawing.size, *files)
