"""How an answer came about, and how sure the method is of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["Provenance", "StandardError"]


class StandardError(NamedTuple):
    """One standard deviation of an estimate's own error, for each element of the answer."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Provenance:
    """Which method gave an answer, with which options, and why that one.

    Attributes:
        method: the method's name.
        options: its options, defaults included.
        reason: why it was chosen, if the caller left the choice to ``"auto"``.
        standard_error: of mean and standard deviation, if the method knows it.
        shares: for every Gaussian input ``(batch, outputs, *input)``, the part of each output's variance that
            every input element causes; empty if the method does not say.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    standard_error: StandardError | None = field(default=None, repr=False)
    shares: tuple[Tensor, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.method}({options}){reason}"
