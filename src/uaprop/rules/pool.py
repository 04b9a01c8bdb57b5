"""Maximum over windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Joint, Random
from ..numerics.largest import largest
from ..numerics.maximum import Marginal, tournament
from ..numerics.moments import untracked
from ..registry import rule
from .average import per_dim

_OUTSIDE = -1e30  # torch pads a maximum with minus infinity; this loses as well, and subtracts


class _Windows(NamedTuple):
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


def _entrants(marginal: Marginal, windows: _Windows) -> list[Marginal]:
    """For each element of a window mean and variance in all windows."""
    mean, var = marginal
    where, cuts = windows.places(mean.shape[windows.dim])
    mean, var = F.pad(mean, where, value=_OUTSIDE), F.pad(var, where)
    return [(mean[cut], var[cut]) for cut in cuts]


def _pooled(marginal: Marginal, windows: list[_Windows]) -> Marginal:
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


_PIECE = 2**18  # elements of a piece that stays in the cache


def _by_piece(moments: Callable[..., Marginal], mean: Tensor, var: Tensor, dims: int) -> Marginal:
    """Some planes (images of one channel) at a time, which spares the memory that all would need."""
    if mean.ndim <= dims or not untracked(mean, var) or mean.numel() <= _PIECE:
        return moments(mean, var)
    lead, area = mean.shape[:-dims], mean.shape[-dims:]
    planes = max(1, _PIECE // area.numel())
    cut = (t.reshape(-1, *area).split(planes) for t in (mean, var))
    pieces = [moments(m, v) for m, v in zip(*cut, strict=True)]
    means, variances = (torch.cat(column) for column in zip(*pieces, strict=True))
    return means.unflatten(0, lead), variances.unflatten(0, lead)


def larger_of(a: Any, b: Any) -> Any:
    """The larger of two random tensors, whatever correlation they have."""
    return b + F.relu(a - b)


def _largest_of(entrants: list[Any]) -> Any:
    """The largest of several, in a balanced tournament."""
    if len(entrants) == 1:
        return entrants[0]
    half = len(entrants) // 2
    return larger_of(_largest_of(entrants[:half]), _largest_of(entrants[half:]))


def far_below(input: Random) -> float:
    """A number that no element gets near to, but that is no larger in size than it need be."""
    return _below(input.loc.detach(), input.cov.var.detach())


def _below(mean: Tensor, var: Tensor) -> float:
    if mean.numel() == 0:
        return 0.0
    low, high = (float(bound) for bound in mean.aminmax())
    return low - max(12 * float(var.max()) ** 0.5, high - low, 1.0)


def _hopeless(input: Any) -> tuple[Tensor, float]:
    """Elements that are certain and below all that vary, as padding is, and where they would lose as well."""
    mean, var = input.loc.detach(), input.cov.var.detach()
    varies = var > 0
    if bool(varies.all()):
        return ~varies, 0.0
    if not bool(varies.any()):
        return mean == -torch.inf, torch.finfo(mean.dtype).min
    floor = _below(mean[varies], var[varies])
    return ~varies & (mean < floor), floor


def _composed_along(input: Any, windows: _Windows) -> Any:
    """Maximum over sliding windows along one dimension, by way of differences and ReLU."""
    where, cuts = windows.places(input.shape[windows.dim])
    if any(where):
        input = F.pad(input, where, value=far_below(input))
    return _largest_of([input[cut] for cut in cuts])


def _register_max_pool(
    operation: Callable[..., Tensor], dims: int, *spellings: Callable[..., Tensor]
) -> None:
    @rule(
        operation, *spellings, exact=False, source="quadrature; Clark (1961) where windows overlap"
    )
    def max_pool(
        input: Random,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if return_indices:
            raise UnsupportedOperation(
                "", reason="the index of a maximum is random", remedy="Use return_indices=False."
            )
        if input.raised is not None:  # max f(x) = f(max x), and x is closer to Gaussian
            given: Any
            given, function = input.raised
            pooled: Any = operation(given, kernel_size, stride, padding, dilation, ceil_mode)
            return function(pooled)
        kernels = per_dim(kernel_size, dims)
        strides = per_dim(stride, dims) if stride else kernels
        paddings, dilations = per_dim(padding, dims), per_dim(dilation, dims)

        def pool(x: Tensor) -> Tensor:
            return operation(x, kernels, strides, paddings, dilations, ceil_mode)

        outs = pool(torch.empty((1, *input.shape[-dims:]), device="meta")).shape[-dims:]

        windows = [
            _Windows(i - dims, outs[i], kernels[i], strides[i], paddings[i], dilations[i])
            for i in range(dims)
        ]

        def moments(mean: Tensor, var: Tensor) -> Marginal:
            working = torch.promote_types(mean.dtype, torch.float32)
            finite = mean.to(working).clamp_min(_OUTSIDE)
            centre, spread = _pooled((finite, var.to(working)), windows)
            centre, spread = centre.to(mean.dtype), spread.to(mean.dtype)
            lost = centre <= _OUTSIDE  # nothing but minus infinity
            if untracked(mean, var) and not bool(lost.any()):
                return centre, spread
            return torch.where(lost, pool(mean), centre), spread

        def composed(x: Any) -> Any:
            outside, floor = _hopeless(x)
            inside = x
            if some := bool(outside.any()):  # differences from them would lose every digit
                inside = torch.where(outside, floor, x)
            for each in windows:
                inside = _composed_along(inside, each)
            if not some:
                return inside
            alone = -pool(-outside.to(x.dtype)) == 1  # windows that hold nothing else
            return torch.where(alone, pool(x.loc), inside)

        return Joint(
            (input,),
            function=pool,
            moments=lambda mean, var: _by_piece(moments, mean, var, dims),
            composed=composed,
        )

    max_pool.__name__ = f"max_pool{dims}d"


_register_max_pool(F.max_pool1d, 1, torch.max_pool1d)
_register_max_pool(F.max_pool2d, 2, torch.max_pool2d)
_register_max_pool(F.max_pool3d, 3, torch.max_pool3d)


@rule(
    F.max_pool1d_with_indices,
    F.max_pool2d_with_indices,
    F.max_pool3d_with_indices,
    torch.max_pool1d_with_indices,
)
def max_pool_with_indices(input: Random, *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedOperation(
        "", reason="the index of a maximum is random", remedy="Use return_indices=False."
    )
