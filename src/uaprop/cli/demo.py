"""``uaprop demo``."""

from __future__ import annotations

import math
from pathlib import Path

import typer
from matplotlib.backend_bases import FigureCanvasBase
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..demo import Comparison, compare_digits, forward_passes
from ..demo.picture import draw

__all__ = ["run"]


def run(out: Path, samples: int, read: float, gain: float) -> None:
    """Compare three methods on noisy digits, print a table and save a picture.

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
        passes = forward_passes()
    console.print(_table(comparison))
    console.print(_verdict(comparison, samples, passes), highlight=False)
    draw(comparison, out)
    console.print(f"\nPicture: {out}", soft_wrap=True, markup=False, highlight=False)


def _table(comparison: Comparison) -> Table:
    table = Table(
        title="Probability of the predicted class ± one standard deviation,\n"
        "and the deviation of its score over Monte Carlo's",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("true", justify="center")
    table.add_column("pred.", justify="center")
    table.add_column("report\n(diagonal)", style="cyan")
    table.add_column(f"default\n({comparison.method})", style="green")
    table.add_column("Monte Carlo", style="yellow")
    table.add_column("report\n/ MC", justify="right")
    table.add_column("default\n/ MC", justify="right")
    for row, (label, predicted) in enumerate(
        zip(comparison.labels.tolist(), comparison.predicted.tolist(), strict=True)
    ):
        cells = []
        for answer in (comparison.diagonal, comparison.default, comparison.sampled):
            std = math.sqrt(float(answer.cov.var[row, predicted]))
            cells.append(f"{float(answer.loc[row, predicted]):.3f} ± {_short(std)}")
        default, report = (f"{float(r[row, predicted]):.2f}" for r in comparison.std_ratios)
        table.add_row(str(label), str(predicted), *cells, report, default)
    return table


def _short(deviation: float) -> str:
    return f"{deviation:.3f}" if deviation >= 0.001 or deviation == 0 else f"{deviation:.0e}"


def _verdict(comparison: Comparison, samples: int, passes: float) -> str:
    told = comparison.scores.provenance
    assert told is not None
    count = comparison.scores.numel()
    return (
        f"By default ua.propagate takes [bold]{told.method}[/bold] here, with {told.options['samples']} "
        f"draws ({told.reason}). It puts the error bars of the class scores on average [bold]within "
        f"{100 * comparison.error:.1f}% of Monte Carlo's[/bold], in the time of {passes:.0f} forward "
        f"passes by the clock instead of {samples}, whose own error is about "
        f"{100 / math.sqrt(math.pi * samples):.1f}%. The report's method treats activations as "
        f"independent: its error bars are [bold]{comparison.ratio:.1f} times too small[/bold], and its "
        f"probabilities look far surer than they are. (Standard deviations of {count} scores before "
        "the softmax: the mean of |ratio − 1|, and the median of the ratios.)"
    )
