"""Pictures with their channels last in memory, as processors convolve them fastest.

A convolution rearranges pictures of the usual layout before and after. Inside of :func:`fastest` they are
rearranged once, for their first convolution, and stay so: whatever follows keeps the layout of its input.
Only values are, without gradients. Nothing is computed otherwise but for rounding, and answers are given back
in the usual layout (:func:`usual`).

But what would be a view of a picture may be a copy now, or the other way round. That matters as soon as one
of them is written to; then everything is computed once more, in the usual layout.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from .moments import in_memory, untracked

__all__ = [
    "fastest",
    "has_channels_last",
    "insist_on_usual",
    "is_rearranged",
    "rearranged",
    "usual",
]

T = TypeVar("T")
_DTYPES = (torch.float32, torch.bfloat16)  # what processors have convolutions of this layout for


class _Here(threading.local):
    channels_last = False


_here = _Here()


class _Rearranged(RuntimeError):
    """Something depends on where elements are in memory."""


def fastest(run: Callable[[], T], *inputs: Tensor) -> T:
    """``run()``, with pictures rearranged in this thread if that is to no one's harm.

    Args:
        run: may be called twice.
        *inputs: of the computation; if one of them has channels last by itself, nothing is rearranged.

    Returns:
        What ``run`` returns.
    """
    if in_memory(*inputs) and not any(map(has_channels_last, inputs)):
        try:
            with _channels_last(True):
                return run()
        except _Rearranged:
            pass
    with _channels_last(False):
        return run()


@contextlib.contextmanager
def _channels_last(wanted: bool) -> Iterator[None]:
    before, _here.channels_last = _here.channels_last, wanted
    try:
        yield
    finally:
        _here.channels_last = before


def insist_on_usual() -> None:
    """Have everything computed in the usual layout: a view, or what it is a view of, was written to."""
    if _here.channels_last:
        raise _Rearranged("this depends on the layout in memory")


def rearranged(x: Tensor, weight: Tensor) -> Tensor:
    """What is to be convolved with the weight, in the layout that is fastest."""
    if not _here.channels_last or x.ndim != 4 or x.dtype not in _DTYPES:
        return x
    if x.shape[3] == 1 or not untracked(x, weight):  # one column is the same in either
        return x
    return x.contiguous(memory_format=torch.channels_last)


def has_channels_last(tensor: Tensor) -> bool:
    """Whether these are pictures with their channels last, and not in the usual order as well."""
    return (
        tensor.ndim == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


def is_rearranged(tensor: Tensor) -> bool:
    """Whether a tensor may have another layout than it would have elsewhere."""
    return _here.channels_last and not tensor.is_contiguous()


def usual(tensor: Tensor) -> Tensor:
    """The usual layout of what may have been rearranged."""
    return tensor.contiguous() if is_rearranged(tensor) else tensor
