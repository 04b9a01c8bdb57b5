"""``uaprop coverage``."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from ..check import coverage
from .targets import load

__all__ = ["run"]


def run(target: str, shape: str | None, as_json: bool) -> None:
    """Print what a model is made of; exit code 1 if an operation is not supported.

    Args:
        target: a model, see :mod:`~uaprop.cli.targets`.
        shape: of its input, as ``1,3,224,224``.
        as_json: whether to print JSON instead of a table.

    Raises:
        typer.BadParameter: if the shape is none.
        typer.Exit: with code 1, if an operation is not supported.
    """
    try:
        sizes = None if shape is None else tuple(int(part) for part in shape.split(","))
    except ValueError:
        raise typer.BadParameter(f"{shape!r} is no shape; write it as 1,3,224,224.") from None
    with Console(stderr=True).status(f"running {target}"):
        model = load(target, sizes)
        found = coverage(model.model, *model.args, **model.kwargs)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    if not found.supported:
        raise typer.Exit(1)
