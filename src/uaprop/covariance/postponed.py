"""Variances behind a convolution that wait for what comes next.

A batch norm multiplies each channel by a factor. Behind a convolution that is a convolution with other
weights: the variances need not be written to memory, and read and written once more. So inside ``with
postponing():`` a convolution's variances are computed when somebody asks for them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..kinds import Linear
from ..numerics.autocast import outside_autocast
from ..numerics.moments import untracked

__all__ = ["Postponed", "postponing", "spread"]


class _Here(threading.local):
    postponing = False


_here = _Here()


@contextlib.contextmanager
def postponing() -> Iterator[None]:
    """Let variances wait, in this thread. Whoever enters this asks for those of the outputs at its end."""
    before, _here.postponing = _here.postponing, True
    try:
        yield
    finally:
        _here.postponing = before


class Postponed:
    """The variances of a linear map's output, still to be computed, without gradients."""

    __slots__ = ("_given", "_kind", "_versions")

    def __init__(self, kind: Linear, given: Tensor) -> None:
        self._kind = kind
        self._given = given
        self._versions = self._now()

    def _now(self) -> list[int | None]:
        tensors = (self._given, self._kind.weight)
        return [None if t is None or t.is_inference() else t._version for t in tensors]

    def value(self) -> Tensor:
        """The variances."""
        return self._computed(self._kind.squared)

    def times(self, factor: Tensor) -> Tensor:
        """The variances, each channel multiplied by its factor ``(channels,)``."""
        rescaled = self._kind.rescaled
        assert rescaled is not None
        return self._computed(lambda var: rescaled(var, factor))

    def _computed(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        if self._versions != self._now():
            raise RuntimeError(
                "a weight or a variance was written to in place between a convolution and the first use "
                "of the convolution's variances; replace it instead, or ask for y.var before"
            )
        with torch.no_grad(), outside_autocast():
            return function(self._given)


def spread(kind: Linear, mean: Tensor) -> Tensor | Postponed:
    """The variances of a linear map's output, whose mean is given; now or later.

    Returns:
        A tensor; or what it is to be computed from.
    """
    if kind.scaling is not None:
        waiting = kind.inputs[0].cov.waiting
        if waiting is not None and untracked(mean):
            found: Tensor = waiting.times(kind.scaling())
            return found
    variances = [x.cov.var for x in kind.inputs]
    if kind.rescaled is not None and _here.postponing and untracked(mean, *variances):
        return Postponed(kind, variances[0])
    return kind.squared(*variances)
