"""The commands and their options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

import uaprop

from ..demo.camera import GAIN, READ

__all__ = ["app"]

app = typer.Typer(
    help="How sure is a network of its answer, when its input is noisy?",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"uaprop {uaprop.__version__}")
        raise typer.Exit


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Load FILE.pt2 although it can run any code that its author put there: only for files "
        "from people you trust.",
    ),
]


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options without a command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The picture; its ending says the format.")] = Path(
        "uaprop-demo.png"
    ),
    samples: Annotated[int, typer.Option(min=2, help="Monte Carlo draws.")] = 5000,
    std: Annotated[
        float,
        typer.Option(min=0, callback=_finite, help="Deviation of the read noise; 1 is white."),
    ] = READ,
    gain: Annotated[
        float, typer.Option(min=0, callback=_finite, help="Variance of the shot noise at white.")
    ] = GAIN,
) -> None:
    """Error bars on noisy digits: the default method, the report's and Monte Carlo."""
    from .demo import run

    run(out, samples, std, gain)


@app.command()
def figures(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.", file_okay=False)] = Path(
        "figures"
    ),
) -> None:
    """Draw the report's figures and its errata, as PNG and SVG."""
    from .figures import run

    run(out)


@app.command()
def coverage(
    model: Annotated[
        str,
        typer.Argument(
            help="torchvision:NAME, timm:NAME, transformers:TYPE or :FOLDER with a config.json, "
            "FILE.pt2 of torch.export (with --trust), or package.module:callable."
        ),
    ],
    shape: Annotated[
        str | None, typer.Option(help="Shape of the input, such as 1,3,224,224.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    trust: Trust = False,
) -> None:
    """List every operation of a model, its rule, and whether its moments are exact."""
    from .coverage import run

    run(model, shape, json, trust)


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="As for coverage.")],
    to: Annotated[Path, typer.Option(help="The file: .onnx, or .pt2 of torch.export.")],
    shape: Annotated[
        str | None, typer.Option(help="Shape of the input, such as 1,3,224,224.")
    ] = None,
    method: Annotated[str, typer.Option(help="diagonal or calibrated.")] = "diagonal",
    calibration: Annotated[
        Path | None, typer.Option(help="For calibrated: a file of ua.Calibration.", dir_okay=False)
    ] = None,
    std: Annotated[
        float, typer.Option(min=0, callback=_finite, help="Deviation of the noise to try it with.")
    ] = 0.1,
    trust: Trust = False,
) -> None:
    """Write a model with error bars to a file, and check the file against eager mode."""
    from .export import run

    run(model, to, shape, method, calibration, std, trust)
