"""Convolutions whose every channel takes a factor, of a batch norm behind them, into its coefficients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..numerics.autocast import outside_autocast
from ..numerics.constants import derived
from ..numerics.frozen import Convolution, frozen, frozen_pair, is_frozen
from ..numerics.precision import reduced
from .contract import square, squared

__all__ = ["Weights"]


class Weights:
    """A product whose second operand has a row of coefficients for each channel of the result.

    Args:
        function: takes the operands and an offset.
        weight: the second operand.
        offset: the offset, or None.
        how: the function's other arguments, if it is a convolution of pictures.
    """

    __slots__ = ("_function", "_how", "_offset", "weight")

    def __init__(
        self, function: Callable[..., Any], weight: Tensor, offset: Any, how: Convolution | None
    ) -> None:
        self._function = function
        self._offset = offset
        self._how = how
        self.weight = weight

    def rescaled(self, var: Tensor, factor: Tensor | None) -> Tensor:
        """The weights squared and each row of them scaled; with few digits, the result is."""
        weight, narrow = self.weight, _is_narrow(var)
        factor = None if factor is None else factor.to(var.dtype)
        if not narrow and (how := self._frozen(var)) is not None:
            return frozen(var, weight, 2, factor, None, how)
        if factor is None:
            return squared(self._function, var, weight)
        if narrow:
            return squared(self._function, var, weight) * factor.view(-1, *[1] * (var.ndim - 2))
        result: Tensor = self._function(
            var, derived(square, weight) * _as_rows(factor, weight), None
        )
        return result

    def _frozen(self, x: Tensor) -> Convolution | None:
        """The convolution, if its weights need not be computed in every call of a compiled program."""
        if self._how is None or not is_frozen(x, self.weight):
            return None
        return self._how.pairs()

    def normed(
        self, mean: Tensor, var: Tensor, factor: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each row of the weights scaled, and another offset."""
        if self._offset is not None:
            shift = shift + self._offset * factor
        how = self._frozen(mean)
        if how is not None and self._frozen(var) is not None and not _is_narrow(var):
            return frozen_pair(mean, var, self.weight, factor, shift, how)
        with outside_autocast():
            spread = self.rescaled(var, factor.square())
        return self._folded(mean, factor, shift), spread

    def _folded(self, x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
        if (how := self._frozen(x)) is not None:
            return frozen(x, self.weight, 1, factor, shift, how)
        weight = self.weight * _as_rows(factor, self.weight)
        result: Tensor = self._function(x, weight.to(x.dtype), shift.to(x.dtype))
        return result


def _is_narrow(var: Tensor) -> bool:
    """Whether variances have too few digits for other weights."""
    return reduced(var) is not None or var.dtype == torch.float16


def _as_rows(factor: Tensor, weight: Tensor) -> Tensor:
    return factor.view(-1, *[1] * (weight.ndim - 1))
