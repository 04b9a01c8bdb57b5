"""``uaprop export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from ..deploy import as_module, export
from ..deploy.export import SUFFIXES
from ..deploy.module import TRACEABLE
from ..methods.calibration import Calibration
from .targets import load, sizes

__all__ = ["run"]


def run(
    target: str,
    to: Path,
    shape: str | None,
    method: str,
    calibration: Path | None,
    std: float,
    trust: bool = False,
) -> None:
    """Export a model with error bars; exit code 1 if it cannot be, or if the file is wrong.

    Args:
        target: a model, see :mod:`~uaprop.cli.targets`.
        to: the file.
        shape: of the model's input, as ``1,3,224,224``.
        method: ``"diagonal"`` or ``"calibrated"``.
        calibration: the file of a calibration, for ``"calibrated"``.
        std: standard deviation of the noise that the file is tried with.
        trust: whether the target, if it is a file, may run code of its author.

    Raises:
        typer.BadParameter: if there is no such model, method or format.
        typer.Exit: with code 1, if no file was written.
    """
    if to.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{to} ends in none of {', '.join(SUFFIXES)}.")
    if method not in TRACEABLE:
        raise typer.BadParameter(f"{method!r} is none of {', '.join(TRACEABLE)}.")
    if (method == "calibrated") != (calibration is not None):
        raise typer.BadParameter("--calibration FILE goes with --method calibrated.")
    options: dict[str, Any] = {}
    if calibration is not None:
        try:
            options["calibration"] = Calibration.load(calibration)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None
    given = sizes(shape)
    with Console(stderr=True).status(f"exporting {target}"):
        model = load(target, given, trust)
        names = [name for name, value in model.kwargs.items() if _random(value)]
        by_keyword = None if any(map(_random, model.args)) or not names else names[0]
        try:
            module = as_module(model.model, method, input=by_keyword, **options)
            args, kwargs = list(model.args), dict(model.kwargs)
            mean = args.pop(0) if by_keyword is None else kwargs.pop(by_keyword)
            error = export(module, to, mean, std**2, *args, **kwargs)
        except (RuntimeError, TypeError, ValueError) as problem:
            typer.echo(f"uaprop: {problem}", err=True)
            raise typer.Exit(1) from None
    typer.echo(
        f"{to}: {to.stat().st_size / 1e6:.1f} MB, any batch size; "
        f"differs from eager mode by {error:.1e} at most, relatively"
    )


def _random(value: Any) -> bool:
    return isinstance(value, Tensor) and torch.is_floating_point(value)
