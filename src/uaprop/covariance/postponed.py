"""Variances and factors behind a convolution that wait for what comes next.

A batch norm multiplies each channel by a factor. Behind a convolution that is a convolution with other
weights: the variances, or a stack of factors, need not be written to memory, and read and written once
more. So inside ``with postponing():`` a convolution's are computed when somebody asks for them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from ..kinds import Linear, Rows
from ..numerics.autocast import is_autocast, outside_autocast
from ..numerics.moments import HALF, is_for_inductor, untracked
from .stacked import across

__all__ = ["Postponed", "passed", "passed_stack", "postponing"]


_WHOLE = 2**22  # elements of a stack that are computed at once
_PIECE = 2**20  # elements at a time, if there are more


class _Here(threading.local):
    postponing = False


_here = _Here()


@contextlib.contextmanager
def postponing() -> Iterator[None]:
    """Let them wait, in this thread. Whoever enters this asks for those of the outputs at its end."""
    before, _here.postponing = _here.postponing, True
    try:
        yield
    finally:
        _here.postponing = before


class Postponed:
    """The variances of a linear map's output, still to be computed, without gradients."""

    __slots__ = ("_given", "_mean", "_rows", "_versions")

    def __init__(self, rows: Rows, mean: Tensor, var: Tensor) -> None:
        self._rows = rows
        self._mean = mean
        self._given = var
        self._versions = self._now()

    def _now(self) -> tuple[int | None, int | None] | None:
        if torch.compiler.is_compiling():  # where nothing is written to in place
            return None
        given, weight = self._given, self._rows.weight
        return (
            None if given.is_inference() else given._version,
            None if weight.is_inference() else weight._version,
        )

    def value(self) -> Tensor:
        """The variances."""
        return self._computed(None)

    def times(self, factor: Tensor) -> Tensor:
        """The variances, each channel multiplied by its factor ``(channels,)``."""
        return self._computed(factor)

    def normed(self, factor: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variances, each channel multiplied by its factor ``(channels,)`` and shifted."""
        with torch.no_grad():
            return self._rows.normed(self._mean, self._given, factor, shift)

    def _computed(self, factor: Tensor | None) -> Tensor:
        if self._versions != self._now():
            raise RuntimeError(
                "a weight or a variance was written to in place between a convolution and the first use "
                "of the convolution's variances; replace it instead, or ask for y.var before"
            )
        if torch.is_grad_enabled() or is_autocast():
            with torch.no_grad(), outside_autocast():
                return self._through(factor)
        return self._through(factor)

    def _through(self, factor: Tensor | None) -> Tensor:
        return self._rows.rescaled(self._given, factor)


class _PostponedStack(Postponed):
    """The same for factors, ``(sources, batch, channels, …)``."""

    __slots__ = ("_shape",)

    def __init__(self, rows: Rows, mean: Tensor, stack: Tensor, shape: torch.Size) -> None:
        super().__init__(rows, mean, stack)
        self._shape = shape

    def _through(self, factor: Tensor | None) -> Tensor:
        """All sources, or few at a time: a convolution has copies of its own, which would be as large."""
        stack, elements = self._given, self._shape.numel()
        if len(stack) * elements <= _WHOLE:
            return self._some(stack, factor)
        size = max(1, _PIECE // elements)
        result = stack.new_empty((len(stack), *self._shape))
        for start in range(0, len(stack), size):
            part = self._some(stack[start : start + size], factor)
            if not part.is_contiguous():  # channels last, and so shall be the result
                return self._some(stack, factor)
            result[start : start + size] = part
        return result

    def _some(self, stack: Tensor, factor: Tensor | None) -> Tensor:
        return self._rows.scaled(stack.flatten(0, 1), factor).unflatten(0, stack.shape[:2])


def _is_foldable(*tensors: Tensor) -> bool:
    """Under ``torch.compile``, and in a dtype with digits to spare."""
    return is_for_inductor(*tensors) and not any(t.dtype in HALF for t in tensors)


def passed(kind: Linear) -> tuple[Tensor, Tensor | Postponed]:
    """Mean and variances of a linear map's output; these now or later.

    Under ``torch.compile`` the mean of a batch norm behind a convolution is that of a convolution, too:
    Inductor would take the root of the norm's variance for every element. Nobody needs the convolution
    without the norm then, and it is left out of the program.

    Returns:
        A tensor; and another, or what it is to be computed from.
    """
    x, *others = kind.inputs
    if others:
        return kind.affine(*[y.loc for y in kind.inputs]), kind.squared(
            *[y.cov.var for y in kind.inputs]
        )
    loc, cov = x.loc, x.cov
    if kind.scaling is not None and cov.waiting is not None:
        factor, shift = kind.scaling()
        if _is_foldable(loc, factor, shift):
            return cov.waiting.normed(factor, shift)
        mean = kind.affine(loc)
        if untracked(mean):
            return mean, cov.waiting.times(factor.square())
        return mean, kind.squared(cov.var)
    mean, var = kind.affine(loc), cov.var
    rows = kind.rows if _here.postponing else None
    if rows is not None and (untracked(mean, var) or _is_foldable(mean, var)):
        return mean, Postponed(rows(), loc, var)
    return mean, kind.squared(var)


def passed_stack(kind: Linear, mean: Tensor) -> Tensor | Postponed:
    """The factors of a linear map's output, now or later; ``mean`` is the output's."""
    (x,) = kind.inputs
    if kind.scaling is not None and x.cov.waiting is not None and untracked(mean):
        factor, _ = kind.scaling()
        scaled: Tensor = x.cov.waiting.times(factor)
        return scaled
    stack = x.cov.values
    if kind.rows is not None and _here.postponing and untracked(mean, stack):
        return _PostponedStack(kind.rows(), x.loc, stack, mean.shape)
    found: Tensor = across(kind.linear, stack)
    return found
