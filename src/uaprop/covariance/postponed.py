"""A batch norm folded into the convolution before it, in a program that ``torch.compile`` traces.

A batch norm multiplies each channel by a factor. Behind a convolution that is a convolution with other
weights. Inductor would compute the root of the norm's variance for every element, and write the convolution's
variances to memory only to read them again. So while a program is traced, the variances of a convolution wait
until the next operation reads them; a graph has all of its readers, and what none of them needs is left out.
Nothing waits in eager mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kinds import Linear, Rows
from ..numerics.autocast import outside_autocast
from ..numerics.moments import HALF, is_for_inductor

__all__ = ["Postponed", "passed"]


class Postponed:
    """The variances of a linear map's output, still to be traced, without gradients."""

    __slots__ = ("_given", "_mean", "_rows")

    def __init__(self, rows: Rows, mean: Tensor, var: Tensor) -> None:
        self._rows = rows
        self._mean = mean
        self._given = var

    def value(self) -> Tensor:
        """The variances."""
        with torch.no_grad(), outside_autocast():
            return self._rows.rescaled(self._given, None)

    def normed(self, factor: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variances, each channel multiplied by its factor ``(channels,)`` and shifted."""
        with torch.no_grad():
            return self._rows.normed(self._mean, self._given, factor, shift)


def _is_foldable(*tensors: Tensor) -> bool:
    """Under ``torch.compile``, and in a dtype with digits to spare."""
    return is_for_inductor(*tensors) and not any(t.dtype in HALF for t in tensors)


def passed(kind: Linear) -> tuple[Tensor, Tensor | Postponed]:
    """Mean and variances of a linear map's output; while a program is traced, these may wait.

    Returns:
        A tensor; and another, or what it is to be computed from.
    """
    means = [x.loc for x in kind.inputs]
    waiting = kind.inputs[0].cov.waiting
    if waiting is not None and kind.scaling is not None:
        factor, shift = kind.scaling()
        if _is_foldable(*means, factor, shift):
            return waiting.normed(factor, shift)
    mean = kind.affine(*means)
    variances = [x.cov.var for x in kind.inputs]
    if kind.rows is not None and len(means) == 1 and _is_foldable(mean, *variances):
        return mean, Postponed(kind.rows(), means[0], variances[0])
    return mean, kind.squared(*variances)
