"""``uaprop coverage``."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from ..check import coverage
from .targets import load, sizes

__all__ = ["run"]


def run(target: str, shape: str | None, as_json: bool, trust: bool = False) -> None:
    """Print what a model is made of; exit code 1 if an operation is not supported.

    Args:
        target: a model, see :mod:`~uaprop.cli.targets`.
        shape: of its input, as ``1,3,224,224``.
        as_json: whether to print JSON instead of a table.
        trust: whether a file may run code of its author.

    Raises:
        typer.Exit: with code 1, if an operation is not supported.
    """
    given = sizes(shape)
    with Console(stderr=True).status(f"running {target}"):
        model = load(target, given, trust)
        found = coverage(model.model, *model.args, **model.kwargs)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    if not found.supported:
        raise typer.Exit(1)
