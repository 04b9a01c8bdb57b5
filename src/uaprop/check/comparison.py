"""The result of comparing methods, and its table."""

from __future__ import annotations

import html
import importlib
import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Comparison", "Errors", "Point", "Row"]

_WIDTH = 100
_GAP = "   "
_HEAD = (
    "method",
    "std error",
    "std bias",
    "mean error",
    "time",
    "draws",
    "std error",
    "mean error",
)
_OWN = 5  # columns before Monte Carlo's


class Errors(NamedTuple):
    """Errors averaged over outputs, with ``σ`` the true deviation and ``μ`` the true mean.

    Attributes:
        std_error: mean of ``|std/σ - 1|``.
        std_bias: mean of ``std/σ - 1``; -0.9 is ten times too small. Its size is ``std_error`` if all
            deviations are off to the same side.
        mean_error: mean of ``|mean - μ|/σ``.
    """

    std_error: float
    std_bias: float
    mean_error: float


class Point(NamedTuple):
    """Monte Carlo's errors with so many draws; of the deviation none with only one."""

    draws: int
    passes: float
    std_error: float | None
    mean_error: float


@dataclass(frozen=True)
class Row:
    """One method, measured; or the error it gave.

    Attributes:
        label: what the caller calls it.
        method: its name.
        options: its options.
        outputs: the number of outputs it was measured on.
        errors: how far it is off.
        seconds: how long it takes.
        passes: the same in units of one plain forward pass.
        draws: the number of Monte Carlo draws that fit into that time.
        monte_carlo_std_error: the ``std_error`` of so many draws; None for fewer than two.
        monte_carlo_mean_error: their ``mean_error``; None for fewer than one.
        failure: the error's type and message, None if there was none.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 0
    errors: Errors | None = None
    seconds: float | None = None
    passes: float | None = None
    draws: int | None = None
    monte_carlo_std_error: float | None = None
    monte_carlo_mean_error: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Methods against Monte Carlo: print it, plot it, or save it as JSON.

    Attributes:
        rows: the methods.
        outputs: the number of outputs that vary.
        left_out: the number of those that do not (or are not finite), which have no ratios.
        samples: Monte Carlo draws that are taken for the truth.
        noise: what these draws leave uncertain: the errors that an exact method would show.
        forward_seconds: one plain forward pass.
        draw_seconds: one Monte Carlo draw, among many.
        monte_carlo: Monte Carlo's errors against its cost.
    """

    rows: tuple[Row, ...]
    outputs: int
    left_out: int
    samples: int
    noise: Errors
    forward_seconds: float
    draw_seconds: float
    monte_carlo: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything in numbers, strings, lists and dicts; options that JSON has no form for as text."""
        rows = [
            asdict(row)
            | {
                "options": {name: _plain(value) for name, value in row.options.items()},
                "errors": row.errors and row.errors._asdict(),
            }
            for row in self.rows
        ]
        return {
            "rows": rows,
            "outputs": self.outputs,
            "left_out": self.left_out,
            "samples": self.samples,
            "noise": self.noise._asdict(),
            "forward_seconds": self.forward_seconds,
            "draw_seconds": self.draw_seconds,
            "monte_carlo": [point._asdict() for point in self.monte_carlo],
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw errors against cost, with Monte Carlo's as a line.

        Args:
            path: where to save it; its ending says the format.

        Returns:
            The matplotlib figure.

        Raises:
            ModuleNotFoundError: if matplotlib is not installed.
        """
        try:
            drawing = importlib.import_module("uaprop.plot.comparison")  # an extra, so only now
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"a plot needs {error.name}, which is not installed; run: pip install 'uaprop[plot]'",
                name=error.name,
            ) from None
        return drawing.draw(self, None if path is None else Path(path))

    def __str__(self) -> str:
        noise = (
            "an exact method",
            _percent(self.noise.std_error),
            f"±{_percent(self.noise.std_bias)}",
            _sigmas(self.noise.mean_error),
        )
        cells = [_cells(row) for row in self.rows]
        whole = [_HEAD, *(row for row in cells if len(row) == len(_HEAD)), (*noise, *[""] * 4)]
        widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
        widths[0] = max(widths[0], *(len(row[0]) for row in cells)) if cells else widths[0]
        own = sum(widths[:_OWN]) + len(_GAP) * _OWN
        rule = "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))
        lines = [" " * own + "Monte Carlo in that time", _line(_HEAD, widths), rule]
        for row in cells:
            lines += [_line(row, widths)] if len(row) == len(_HEAD) else _wrapped(row, widths[0])
        return "\n".join([*lines, rule, _line(noise, widths), "", self._legend()])

    def _legend(self) -> str:
        left_out = f" ({self.left_out:,} more do not vary)" if self.left_out else ""
        text = (
            f"{self.outputs:,} outputs{left_out}, against {self.samples:,} Monte Carlo draws, whose own "
            "noise makes an exact method look as wrong as the last line. σ is the true standard "
            f"deviation. Time is in forward passes of {_seconds(self.forward_seconds)} each; a draw, "
            f"among many, takes {_seconds(self.draw_seconds)}."
        )
        return textwrap.fill(text, _WIDTH)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return str(value)


def _cells(row: Row) -> tuple[str, ...]:
    """The table's cells: all of them, or a label and an error."""
    if row.errors is None or row.passes is None or row.draws is None:
        return row.label, row.failure or ""
    bias = row.errors.std_bias
    return (
        row.label,
        _percent(row.errors.std_error),
        f"{'-' if bias < 0 else '+'}{_percent(abs(bias))}",
        _sigmas(row.errors.mean_error),
        f"{_number(row.passes)} ×",
        f"{row.draws:,}",
        "none" if row.monte_carlo_std_error is None else _percent(row.monte_carlo_std_error),
        "none" if row.monte_carlo_mean_error is None else _sigmas(row.monte_carlo_mean_error),
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    pairs = list(zip(cells, widths, strict=False))
    (first, width), *rest = pairs
    return _GAP.join([f"{first:{width}}", *(f"{cell:>{width}}" for cell, width in rest)])


def _wrapped(cells: tuple[str, ...], width: int) -> list[str]:
    label, text = cells
    parts = textwrap.wrap(text, _WIDTH - min(width, _WIDTH // 2) - len(_GAP))
    return [f"{label if part is parts[0] else '':{width}}{_GAP}{part}" for part in parts]


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{_number(100 * value)}%"


def _sigmas(value: float) -> str:
    return f"{_number(value)} σ"


def _seconds(value: float) -> str:
    return f"{_number(1000 * value)} ms" if value < 1 else f"{_number(value)} s"
