"""``uaprop demo``."""

from __future__ import annotations

import math
from pathlib import Path

import typer
from matplotlib.backend_bases import FigureCanvasBase
from rich.console import Console
from rich.table import Table

from ..demo import Comparison, compare_digits
from ..demo.picture import draw

__all__ = ["run"]

_MANY = 10_000


def run(out: Path, samples: int, read: float, gain: float) -> None:
    """Compare both methods on noisy digits, print a table and save a picture.

    Args:
        out: the picture's file.
        samples: Monte Carlo draws.
        read: deviation of the read noise.
        gain: variance of the shot noise at white.

    Raises:
        typer.BadParameter: if the picture's format is unknown, or there is no noise.
    """
    formats = FigureCanvasBase.get_supported_filetypes()
    if out.suffix.lower().lstrip(".") not in formats:
        raise typer.BadParameter(f"{out} ends in none of {', '.join(sorted(formats))}.")
    if read == 0 and gain == 0:
        raise typer.BadParameter("without noise there are no error bars: raise --std or --gain.")
    out.parent.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print(
        "A small CNN reads handwritten digits (8 × 8 pixels, 0 black, 1 white) through a noisy "
        f"camera: read noise of deviation {read:g} in every pixel, and shot noise of variance "
        f"{gain:g} · intensity. How sure is it of its answer?",
        highlight=False,
    )
    with console.status(f"sampling {samples} noisy pictures of each digit"):
        comparison = compare_digits(read, gain, samples)
    console.print(_table(comparison))
    console.print(_verdict(comparison, samples), highlight=False)
    draw(comparison, out)
    console.print(f"\nPicture: {out}", soft_wrap=True, markup=False, highlight=False)


def _table(comparison: Comparison) -> Table:
    table = Table(title="Probability of the predicted class, ± one standard deviation")
    table.add_column("true", justify="center")
    table.add_column("predicted", justify="center")
    table.add_column("report\n(diagonal)", justify="left", style="cyan")
    table.add_column("Monte Carlo", justify="left", style="yellow")
    table.add_column("std ratio,\nprobability", justify="right")
    table.add_column("std ratio,\nscore", justify="right")
    for row, (label, predicted) in enumerate(
        zip(comparison.labels.tolist(), comparison.predicted.tolist(), strict=True)
    ):
        score = f"{float(comparison.score_ratios[row, predicted]):.1f} ×"
        cells = []
        deviations = []
        for answer in (comparison.diagonal, comparison.sampled):
            mean = float(answer.loc[row, predicted])
            deviations.append(math.sqrt(float(answer.cov.var[row, predicted])))
            cells.append(f"{mean:.3f} ± {_short(deviations[-1])}")
        table.add_row(str(label), str(predicted), *cells, _times(*deviations), score)
    return table


def _short(deviation: float) -> str:
    return f"{deviation:.3f}" if deviation >= 0.001 or deviation == 0 else f"{deviation:.0e}"


def _times(small: float, large: float) -> str:
    if small == 0:
        return "–"
    ratio = large / small
    return f"> {_MANY:,} ×" if ratio > _MANY else f"{ratio:,.0f} ×"


def _verdict(comparison: Comparison, samples: int) -> str:
    return (
        "The report's method treats activations as independent. On this trained network that makes "
        f"the error bars of the class scores [bold]{comparison.ratio:.1f} times too small[/bold] "
        f"(before the softmax; median of {comparison.score_ratios.numel()} ratios, {samples} "
        "draws), and the probabilities look far surer than they are."
    )
