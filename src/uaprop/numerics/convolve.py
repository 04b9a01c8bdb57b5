"""Convolutions of pictures that a processor's library is slow at by itself.

*One column.* Sound is often given to two-dimensional convolutions as pictures of many rows and one column.
Libraries for processors work along the rows, so such pictures are laid on their side first, with their
channels last in memory: two to four times as fast, and the same numbers.

*Few channels.* The derivative by the input spreads every output over the window it was computed from.
Libraries for processors work on eight or sixteen channels of the input at once; of pictures with one to
three, which every network begins with, most of that is in vain: up to thirty times the convolution's own
time. There, a matrix product and a sum over windows (``F.fold``) do the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor

__all__ = ["convolve", "only_by_inputs"]

_TALL = 16  # rows of a picture of one column, from which on laying it down pays
_FEW = 4  # channels of the input, fewer than a processor takes at once


class _Here(threading.local):
    only_by_inputs = False


_here = _Here()


@contextlib.contextmanager
def only_by_inputs() -> Iterator[None]:
    """Nobody in this thread asks for derivatives by weights; they are left out of the graph."""
    before, _here.only_by_inputs = _here.only_by_inputs, True
    try:
        yield
    finally:
        _here.only_by_inputs = before


class _How(NamedTuple):
    """The arguments of a convolution, a pair each."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


def convolve(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """``F.conv2d``; inside of :func:`only_by_inputs` with a quick derivative by the input."""
    x = input
    if _here.only_by_inputs and x.requires_grad and torch.is_grad_enabled():
        how = _pairs(stride, padding, dilation)
        usual = x.is_cpu and x.ndim == 4 and groups == 1
        if usual and how is not None and _pays(x.shape[1], how):
            offset = None if bias is None else bias.detach()
            quick: Tensor = _Convolution.apply(x, weight.detach(), offset, how)
            return quick
    return _convolved(x, weight, bias, stride, padding, dilation, groups)


def _convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int = 1,
) -> Tensor:
    if (lying := _lain(x, weight, stride, padding, dilation)) is not None:
        result = F.conv2d(lying[0], lying[1], bias, *lying[2], groups).transpose(2, 3)
        usual = x.is_contiguous()
        layout = torch.contiguous_format if usual else torch.channels_last
        return result.contiguous(memory_format=layout)  # the input's, as of any convolution
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def _lain(
    x: Tensor, weight: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1
) -> tuple[Tensor, Tensor, _How] | None:
    """A convolution of pictures of one column, as one of pictures of one row.

    Args:
        x: ``(batch, channels, height, width)``.
        weight: ``(out channels, channels per group, …, …)``.
        stride: as for ``F.conv2d``; so are the others.
        padding: of both sides.
        dilation: of the window.

    Returns:
        Pictures ``(batch, channels, width, height)`` with channels last, the weight and the numbers to go
        with them, for a result of that orientation; None where the pictures have more columns, or torch
        has no use for it.
    """
    size = x.shape  # asked for once: it takes as long as the rest
    if len(size) != 4 or size[3] != 1 or size[2] < _TALL:
        return None
    if weight.ndim != 4 or weight.shape[3] != 1:
        return None
    known = x.is_cpu and x.dtype == weight.dtype == torch.float32
    if (
        not known
        or torch.compiler.is_compiling()
        or is_batchedtensor(x)
        or is_batchedtensor(weight)
    ):
        return None
    how = _pairs(stride, padding, dilation)
    if how is None or how.padding[1] != 0:
        return None
    lying = x.transpose(2, 3).contiguous(memory_format=torch.channels_last)
    return lying, weight.transpose(2, 3).contiguous(), _How(*(pair[::-1] for pair in how))


def _pays(channels: int, how: _How) -> bool:
    """Measured: one channel always, a few if the windows are not next to each other."""
    return channels == 1 or (channels <= _FEW and max(how.stride) > 1)


def _pairs(*arguments: Any) -> _How | None:
    """Each as a pair; None if one is a word (``padding="same"``)."""
    if any(isinstance(a, str) for a in arguments):
        return None
    pairs = [(a, a) if isinstance(a, int) else tuple(a) for a in arguments]
    return _How(*(p * 2 if len(p) == 1 else p for p in pairs))


class _Convolution(torch.autograd.Function):
    """A convolution with constant weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: _How) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.how, ctx.size = how, x.shape[2:]
        return _convolved(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (weight,) = ctx.saved_tensors
        return _Spread.apply(grad, weight, ctx.how, ctx.size), None, None, None


class _Spread(torch.autograd.Function):
    """Its transpose, whose own derivative is the convolution."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weight: Tensor, how: _How, size: torch.Size) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.how = how
        windows = weight.flatten(1).mT @ grad.flatten(2)
        return F.fold(windows, size, weight.shape[2:], how.dilation, how.padding, how.stride)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (weight,) = ctx.saved_tensors
        return _convolved(grad, weight, None, *ctx.how), None, None, None
