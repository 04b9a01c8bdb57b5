"""The largest of independent Gaussians in sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .largest import largest
from .maximum import Marginal, tournament
from .moments import untracked

__all__ = ["Pooling", "Windows", "largest_in_windows"]

_OUTSIDE = -1e30  # torch pads a maximum with minus infinity; this loses as well, and subtracts
_PIECE = 2**18  # elements of a piece that stays in the cache


class Windows(NamedTuple):
    """Sliding windows along one dimension, a negative number."""

    dim: int
    out: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    def places(self, size: int) -> tuple[list[int], list[Any]]:
        """The padding that F.pad takes, and for each element of a window its cut through all windows."""
        span = (self.out - 1) * self.stride + 1
        after = max(0, span + self.dilation * (self.kernel - 1) - size - self.padding)
        behind = -self.dim - 1
        starts = (k * self.dilation for k in range(self.kernel))
        cuts = [(..., slice(k, k + span, self.stride), *[slice(None)] * behind) for k in starts]
        return [0, 0] * behind + [self.padding, after], cuts


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
    if mean.ndim > dims and _is_for_inductor(mean, var):
        found: Marginal = torch.ops.uaprop.largest_in_windows(mean, var, *pooling)
        return found
    if mean.ndim <= dims or not untracked(mean, var) or mean.numel() <= _PIECE:
        return _largest(mean, var, pooling, pooling.windows(mean.shape))
    return _by_piece(mean, var, pooling)


def _by_piece(mean: Tensor, var: Tensor, pooling: Pooling) -> Marginal:
    """Some planes (images of one channel) at a time, which spares the memory that all would need."""
    dims = len(pooling.kernel)
    lead, area = mean.shape[:-dims], mean.shape[-dims:]
    means, variances = mean.reshape(-1, *area), var.reshape(-1, *area)
    windows = pooling.windows(area)
    outs = [w.out for w in windows]
    centre, spread = mean.new_empty((*lead, *outs)), mean.new_empty((*lead, *outs))
    planes = max(1, _PIECE // area.numel())
    for start in range(0, len(means), planes):
        piece = slice(start, start + planes)
        found = _largest(means[piece], variances[piece], pooling, windows)
        for whole, part in zip((centre, spread), found, strict=True):
            whole.view(-1, *outs)[piece] = part
    return centre, spread


def _largest(mean: Tensor, var: Tensor, pooling: Pooling, windows: list[Windows]) -> Marginal:
    working = torch.promote_types(mean.dtype, torch.float32)
    marginal = mean.to(working).clamp_min(_OUTSIDE), var.to(working)
    centre, spread = _pooled(marginal, windows)
    centre, spread = centre.to(mean.dtype), spread.to(mean.dtype)
    lost = centre <= _OUTSIDE  # nothing but minus infinity
    if untracked(mean, var) and not bool(lost.any()):
        return centre, spread
    return torch.where(lost, pooling.plain(mean), centre), spread


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
    where, cuts = windows.places(mean.shape[windows.dim])
    mean, var = F.pad(mean, where, value=_OUTSIDE), F.pad(var, where)
    return [(mean[cut], var[cut]) for cut in cuts]


# ------------------------------------------------------------------ under torch.compile
# Inductor would make one loop of the whole tournament, with what comes before it computed anew for every
# window that it is in: minutes to compile, and ten times as long to run. So it gets an operation that
# it does not look into. Programs that leave the process, and gradients, have the formulas.


def _is_for_inductor(mean: Tensor, var: Tensor) -> bool:
    return (
        torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
        and mean.device.type == "cpu"
        and not (torch.is_grad_enabled() and (mean.requires_grad or var.requires_grad))
    )


_library = torch.library.Library("uaprop", "DEF")
_library.define(
    "largest_in_windows(Tensor mean, Tensor var, int[] kernel, int[] stride, int[] padding, "
    "int[] dilation, bool ceil_mode) -> (Tensor, Tensor)"
)


def _opaque(mean: Tensor, var: Tensor, *pooling: Any) -> Marginal:
    centre, spread = largest_in_windows(mean.contiguous(), var.contiguous(), Pooling(*pooling))
    own = torch.contiguous_format  # memory of their own, and laid out as was promised
    return centre.clone(memory_format=own), spread.clone(memory_format=own)


def _promised(mean: Tensor, var: Tensor, *pooling: Any) -> Marginal:
    shape = Pooling(*pooling).plain(mean).shape
    return mean.new_empty(shape), mean.new_empty(shape)


_library.impl("largest_in_windows", _opaque, "CPU")
_library.impl("largest_in_windows", _promised, "Meta")
