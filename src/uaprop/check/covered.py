"""The result of :func:`~uaprop.coverage`, and its table."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Coverage", "Operation"]

_WIDTH = 100
_HEAD = ("operation", "calls", "kind", "moments", "where")
_WORST_FIRST = ("unsupported", "linearised", "approximate", "exact")


@dataclass(frozen=True)
class Operation:
    """One operation of a model, however often it is called.

    Attributes:
        name: torch's name of it.
        calls: how often it was called on a random tensor.
        modules: path and type of the modules that called it.
        rule: the rule's name, or "".
        kind: the kind of map (:mod:`uaprop.kinds`); the parts, for an operation composed of others;
            "identity"; or "plain" if its answer is not random.
        moments: "exact" for independent Gaussian elements, "approximate", "linearised" (where correlation
            is carried) or "unsupported".
        source: citation of the formula.
        reason: why it is not supported.
        remedy: what can be done about that.
    """

    name: str
    calls: int
    modules: tuple[str, ...]
    rule: str
    kind: str
    moments: str
    source: str = ""
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Coverage:
    """Every operation of a model, in the order in which they first come.

    Attributes:
        operations: the operations.
        entrance: how the model was run, if not by calling it.
    """

    operations: tuple[Operation, ...]
    entrance: str = ""

    @property
    def supported(self) -> bool:
        """Whether every operation has a rule."""
        return not self.unsupported

    @property
    def unsupported(self) -> tuple[Operation, ...]:
        """The operations that have none."""
        return tuple(op for op in self.operations if op.moments == "unsupported")

    def to_dict(self) -> dict[str, Any]:
        """Everything in strings, numbers, lists and dicts."""
        return {
            "supported": self.supported,
            "entrance": self.entrance,
            "operations": [asdict(op) | {"modules": list(op.modules)} for op in self.operations],
        }

    def __str__(self) -> str:
        rows = sorted(self.operations, key=lambda op: _WORST_FIRST.index(op.moments))
        cells = [_HEAD, *map(_cells, rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [_line(row, widths) for row in cells]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join([*lines, "", *self._verdict(), *self._sources()])

    def _verdict(self) -> Iterable[str]:
        calls = sum(op.calls for op in self.operations)
        missing = self.unsupported
        if not self.operations:
            yield "No operation met a random tensor."
        elif not missing:
            yield f"Supported: all {len(self.operations)} operations, {calls} calls."
        else:
            yield f"Not supported: {len(missing)} of {len(self.operations)} operations."
        if self.entrance:
            yield from textwrap.wrap(f"Entered {self.entrance}.", _WIDTH)
        for op in missing:
            remedy = f" {op.remedy}" if op.remedy else ""
            yield from textwrap.wrap(
                f"{op.name}: {op.reason}.{remedy}", _WIDTH, subsequent_indent="  "
            )
        if missing:
            yield from textwrap.wrap(
                'Add rules with @ua.rule, or use method="hybrid" (whatever is differentiable), '
                'method="samples" (anything) or unsupported="linearise".',
                _WIDTH,
            )

    def _sources(self) -> Iterable[str]:
        for op in self.operations:
            if op.source:
                text = f"{_short(op.name)}: {op.source}"
                yield from textwrap.wrap(text, _WIDTH, subsequent_indent="  ")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _short(name: str) -> str:
    """The name as people write it."""
    return name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")


def _cells(op: Operation) -> tuple[str, ...]:
    where = op.modules[0] if op.modules else ""
    if len(op.modules) > 1:
        where += f" and {len(op.modules) - 1} more"
    kind = textwrap.shorten(op.kind, 30, placeholder=" …")
    return _short(op.name), str(op.calls), kind, op.moments, where


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    name, calls, *rest = cells
    padded = [f"{cell:{width}}" for cell, width in zip(rest, widths[2:], strict=True)]
    return "  ".join([f"{name:{widths[0]}}", f"{calls:>{widths[1]}}", *padded]).rstrip()
