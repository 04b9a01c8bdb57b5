"""Pictures with their channels last in memory, as processors convolve them fastest.

A convolution rearranges pictures of the usual layout before and after. Inside ``with channels_last():`` they
are rearranged once, for their first convolution, and stay so: whatever follows keeps the layout of its input.
Only values are, without gradients. Nothing is computed otherwise but for rounding, and whoever enters this
gives the answer back in the usual layout (:func:`usual`).

What would be a view of a picture may be a copy now. Gaussians know views of their own, and are told by
:func:`is_rearranged`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from .moments import in_memory, untracked

__all__ = ["channels_last", "has_channels_last", "is_rearranged", "rearranged", "usual"]

_DTYPES = (torch.float32, torch.bfloat16)  # what processors have convolutions of this layout for


class _Here(threading.local):
    channels_last = False


_here = _Here()


@contextlib.contextmanager
def channels_last(*inputs: Tensor) -> Iterator[None]:
    """Have pictures rearranged, in this thread; not if one of the inputs has that layout by itself."""
    before = _here.channels_last
    _here.channels_last = in_memory(*inputs) and not any(map(has_channels_last, inputs))
    try:
        yield
    finally:
        _here.channels_last = before


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
    """Whether these are pictures that would have the usual layout elsewhere."""
    return _here.channels_last and has_channels_last(tensor)


def usual(tensor: Tensor) -> Tensor:
    """The usual layout of what was rearranged."""
    return tensor.contiguous() if is_rearranged(tensor) else tensor
