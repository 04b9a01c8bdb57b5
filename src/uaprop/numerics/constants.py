"""What is computed from a frozen model's weights, kept from pass to pass.

Squared weights and the factors of a batch norm do not change as long as the weights do not. Inside ``with
Constants():`` they are computed once; the keeper is the caller's, and forgets nothing but what has changed:
on a CPU however it was written to, elsewhere by torch's count of versions.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .moments import is_transformed

__all__ = ["Constants", "derived"]

T = TypeVar("T")


class _Here(threading.local):
    keepers: tuple[Constants, ...] = ()


_here = _Here()


class Constants:
    """Keeps what :func:`derived` computes while this is entered, in this thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[tuple[Any, ...], list[Tensor], Any]] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Forget what was computed from these."""
        numbers = {id(t) for t in tensors}
        for key in [key for key in self._known if not numbers.isdisjoint(key[1:])]:
            del self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins with nothing: it is of other tensors."""
        return Constants, ()

    def __enter__(self) -> Constants:
        _here.keepers = (*_here.keepers, self)
        return self

    def __exit__(self, *error: object) -> None:
        _here.keepers = _here.keepers[:-1]

    def get(self, function: Callable[..., T], tensors: tuple[Any, ...], numbers: Any) -> T:
        """The function's value, computed anew if a tensor was written to or replaced."""
        key = (function, *(id(t) for t in tensors), *numbers)
        state = tuple((t.data_ptr(), t._version, t.dtype) for t in tensors if t is not None)
        sums = [_checksum(t) for t in tensors if t is not None and t.is_cpu]
        found = self._known.get(key)
        if found is not None and found[0] == state and all(map(torch.equal, found[1], sums)):
            value: T = found[2]
            return value
        value = function(*tensors, *numbers)
        self._known[key] = state, sums, value
        for t in tensors:
            if t is not None and found is None:  # its number may be another tensor's later
                weakref.finalize(t, self._known.pop, key, None)
        return value


def _checksum(tensor: Tensor) -> Tensor:
    """The sum of each row's bits, read as whole numbers: any change shows but one of order in a row.

    Fused optimizers and ``weight.data`` do not count versions. To read weights once takes a hundredth of the
    time of a convolution with them.

    Returns:
        A number for each row.
    """
    rows = tensor.detach()
    if rows.ndim == 4 and not rows.is_contiguous():
        rows = rows.permute(0, 2, 3, 1)  # contiguous if the channels are last
    rows = rows.reshape(len(rows), -1) if rows.ndim else rows.reshape(1, 1)
    sizes = (torch.int64, torch.int32, torch.int16, torch.uint8)
    fitting = (t for t in sizes if rows.shape[1] * rows.itemsize % t.itemsize == 0)
    return rows.contiguous().view(next(fitting)).sum(1)


def derived(
    function: Callable[..., T], *tensors: Tensor | None, numbers: tuple[Any, ...] = ()
) -> T:
    """``function(*tensors, *numbers)``, from the keeper if there is one.

    Args:
        function: of a model's weights; the same object each time.
        *tensors: the weights, or None.
        numbers: further arguments.

    Returns:
        The function's value; computed where a derivative by a weight is asked for, or a program traced.
    """
    keepers = _here.keepers
    if (
        not keepers
        or is_transformed()
        or any(
            t is not None and (t.is_inference() or (t.requires_grad and torch.is_grad_enabled()))
            for t in tensors
        )
    ):
        return function(*tensors, *numbers)
    return keepers[-1].get(function, tensors, numbers)
