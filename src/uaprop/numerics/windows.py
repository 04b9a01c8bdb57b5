"""The largest of independent Gaussians in sliding windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .halved import halved
from .largest import largest
from .maximum import Marginal, tournament
from .moments import is_for_inductor, untracked

__all__ = ["Pooling", "Windows", "largest_in_windows"]

_OUTSIDE = -1e30  # torch pads a maximum with minus infinity; this loses as well, and subtracts
_VECTOR = 16  # neighbours in memory that a processor takes at once
_PIECE = 2**20  # elements at a time: few enough to spare memory, and enough for all threads


class Windows(NamedTuple):
    """Sliding windows along one dimension, a negative number."""

    dim: int
    out: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    def elements(self, size: int) -> Iterator[tuple[Any, list[int]]]:
        """For each element of a window its cut through all windows that it is inside of, and the rest."""
        behind = -self.dim - 1
        for k in range(self.kernel):
            offset = self.padding - k * self.dilation  # to the left of where the windows begin
            before = min(self.out, max(0, -(-offset // self.stride)))
            after = self.out - max(before, min(self.out, (size - 1 + offset) // self.stride + 1))
            begin = before * self.stride - offset
            end = begin + max(0, (self.out - before - after - 1) * self.stride + 1)
            cut = (..., slice(begin, end, self.stride), *[slice(None)] * behind)
            yield cut, [0, 0] * behind + [before, after]

    def cut(self, start: int, end: int) -> tuple[slice, Windows]:
        """The elements that some of the windows are over, and those windows over these alone."""
        low = start * self.stride - self.padding
        high = (end - 1) * self.stride - self.padding + self.dilation * (self.kernel - 1) + 1
        part = self._replace(out=end - start, padding=max(0, -low))
        return slice(max(0, low), max(0, high)), part


class Pooling(NamedTuple):
    """The arguments of torch's max-pooling, with a number for each dimension."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    ceil_mode: bool

    def plain(self, x: Tensor) -> Tensor:
        """Torch's own."""
        pool: Any = _MAX_POOL[len(self.kernel)]
        return cast(Tensor, pool(x, *self))

    def windows(self, shape: Sequence[int]) -> list[Windows]:
        """The windows along each dimension of a tensor of this shape."""
        dims = len(self.kernel)
        outs = self.plain(torch.empty((1, *shape[-dims:]), device="meta")).shape[-dims:]
        numbers = zip(outs, *self[:4], strict=True)
        return [Windows(i - dims, *along) for i, along in enumerate(numbers)]


_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def largest_in_windows(mean: Tensor, var: Tensor, pooling: Pooling) -> Marginal:
    """Moments of the largest element of each window, for independent Gaussian elements.

    Args:
        mean: ``(…, *sizes)``, with a size for each dimension of the windows.
        var: the same.
        pooling: the windows.

    Returns:
        Mean and variance, ``(…, *outputs)``.
    """
    dims = len(pooling.kernel)
    if mean.ndim > dims and mean.is_cpu and is_for_inductor(mean, var):
        found: Marginal = torch.ops.uaprop.largest_in_windows(mean, var, *pooling)
        return found
    values = untracked(mean, var)
    if values and mean.ndim > dims:
        centre, spread = _of_values(mean, var, pooling)
    else:
        centre, spread = _largest(mean, var, pooling.windows(mean.shape))
    if values and centre.numel() and bool(centre.amin() > _OUTSIDE):
        return centre, spread
    lost = centre <= _OUTSIDE  # nothing but minus infinity
    return torch.where(lost, pooling.plain(mean), centre), spread


def _has_channels_last(tensor: Tensor) -> bool:
    """Whether these are images with their channels last, and not contiguous as well."""
    return (
        tensor.ndim == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


def _of_values(mean: Tensor, var: Tensor, pooling: Pooling) -> Marginal:
    """A piece at a time, into place and in the order that the elements have in memory."""
    windows = pooling.windows(mean.shape)
    dims = len(windows)
    sizes, outs = mean.shape[-dims:], [w.out for w in windows]
    if dims == 2 and _has_channels_last(mean):
        order = (0, 2, 3, 1)
        shape = (mean.shape[0], *outs, mean.shape[1])
        windows = [w._replace(dim=w.dim - 1) for w in windows]
        centre, spread = _by_piece(mean.permute(order), var.permute(order), windows, shape)
        return centre.permute(0, 3, 1, 2), spread.permute(0, 3, 1, 2)
    lead = mean.shape[:-dims]
    planes, places = (t.reshape(-1, *sizes) for t in (mean, var))
    shape = (math.prod(lead), *outs)
    centre, spread = _by_piece(planes, places, windows, shape)
    return centre.view(*lead, *outs), spread.view(*lead, *outs)


def _by_piece(mean: Tensor, var: Tensor, windows: list[Windows], shape: Sequence[int]) -> Marginal:
    """Some planes, or some rows of a plane, at a time: to spare memory.

    Args:
        mean: ``(planes, rows, …)``; the first windows are over rows.
        var: the same.
        windows: along each dimension.
        shape: of the result.

    Returns:
        Mean and variance, contiguous.
    """
    centre, spread = mean.new_empty(shape), mean.new_empty(shape)
    first, *others = windows
    width = max(1, math.prod(mean.shape[2:]))
    count = max(1, _PIECE // (width * mean.shape[1]))
    height = first.out if count > 1 else max(1, _PIECE // (width * first.stride))
    by_two = _is_halving(mean, windows)
    for plane in range(0, shape[0], count):
        planes = slice(plane, plane + count)
        if by_two and (found := halved(mean[planes], var[planes], len(windows))) is not None:
            centre[planes], spread[planes] = found
            continue
        for row in range(0, first.out, height):
            rows, part = first.cut(row, min(row + height, first.out))
            found = _largest(mean[planes, rows], var[planes, rows], [part, *others])
            centre[planes, row : row + height], spread[planes, row : row + height] = found
    return centre, spread


def _is_halving(mean: Tensor, windows: list[Windows]) -> bool:
    """Whether there is :func:`~uaprop.numerics.halved.halved` for these: not where vectors would be short."""
    sizes, width = mean.shape[1 : 1 + len(windows)], mean.shape[1 + len(windows) :].numel()
    usual = all(
        w[1:] == (size // 2, 3, 2, 1, 1) and size % 2 == 0
        for w, size in zip(windows, sizes, strict=True)
    )
    return usual and width >= _VECTOR


def _largest(mean: Tensor, var: Tensor, windows: list[Windows]) -> Marginal:
    working = torch.promote_types(mean.dtype, torch.float32)
    centre, spread = _pooled((mean.to(working).clamp_min(_OUTSIDE), var.to(working)), windows)
    return centre.to(mean.dtype), spread.to(mean.dtype)


def _pooled(marginal: Marginal, windows: list[Windows]) -> Marginal:
    """The largest of each window.

    Windows that do not overlap are integrated, at a cost of a dozen error functions for each element.
    Where an element belongs to several windows, that would be many times the cost of all else; there
    it is Clark's tournament, one dimension after the other.

    Returns:
        Mean and variance, of the output's shape.
    """
    if all(w.stride >= w.kernel for w in windows):
        entrants = [marginal]
        for w in windows:
            entrants = [entrant for each in entrants for entrant in _entrants(each, w)]
        means, variances = zip(*entrants, strict=True)
        return largest(torch.stack(means), torch.stack(variances))
    for w in windows:
        marginal = tournament(_entrants(marginal, w))
    return marginal


def _entrants(marginal: Marginal, windows: Windows) -> list[Marginal]:
    """For each element of a window mean and variance in all windows."""
    mean, var = marginal
    found = []
    for cut, where in windows.elements(mean.shape[windows.dim]):
        m, v = mean[cut], var[cut]
        if any(where):
            m, v = F.pad(m, where, value=_OUTSIDE), F.pad(v, where)
        found.append((m, v))
    return found


# ------------------------------------------------------------------ under torch.compile
# Inductor would make one loop of the whole tournament, with what comes before it computed anew for every
# window that it is in: minutes to compile, and ten times as long to run. So it gets an operation that
# it does not look into. Programs that leave the process, and gradients, have the formulas.


_library = torch.library.Library("uaprop", "DEF")
_library.define(
    "largest_in_windows(Tensor mean, Tensor var, int[] kernel, int[] stride, int[] padding, "
    "int[] dilation, bool ceil_mode) -> (Tensor, Tensor)",
    tags=(torch.Tag.flexible_layout,),
)


def _layout(mean: Tensor, kernel: Sequence[int]) -> torch.memory_format:
    """What Inductor's convolutions of pictures have, before and after."""
    pictures = mean.ndim == 4 and len(kernel) == 2
    return torch.channels_last if pictures else torch.contiguous_format


def _opaque(mean: Tensor, var: Tensor, *pooling: Any) -> Marginal:
    layout = _layout(mean, pooling[0])
    mean, var = (t.contiguous(memory_format=layout) for t in (mean, var))
    centre, spread = largest_in_windows(mean, var, Pooling(*pooling))
    return centre.contiguous(memory_format=layout), spread.contiguous(memory_format=layout)


def _promised(mean: Tensor, var: Tensor, *pooling: Any) -> Marginal:
    shape = Pooling(*pooling).plain(mean).shape
    layout = _layout(mean, pooling[0])
    empty = torch.empty(shape, dtype=mean.dtype, device=mean.device, memory_format=layout)
    return empty, torch.empty_like(empty)


_library.impl("largest_in_windows", _opaque, "CPU")
_library.impl("largest_in_windows", _promised, "Meta")
