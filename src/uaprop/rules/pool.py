"""Maximum over windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kinds import Joint, Random
from ..numerics.windows import Pooling, Windows, largest_in_windows
from ..registry import rule
from .average import per_dim
from .extremes import Undecided


def _largest_of(entrants: list[Any]) -> Any:
    """The largest of several, in a balanced tournament."""
    if len(entrants) == 1:
        return entrants[0]
    half = len(entrants) // 2
    return torch.maximum(_largest_of(entrants[:half]), _largest_of(entrants[half:]))


def far_below(input: Random) -> float:
    """A number that no element gets near to, but that is no larger in size than it need be."""
    return _below(input.loc.detach(), input.cov.var.detach())


def _below(mean: Tensor, var: Tensor) -> float:
    if mean.numel() == 0:
        return 0.0
    return _under(*mean.aminmax(), var.max())


def _under(low: Tensor, high: Tensor, var: Tensor) -> float:
    """A number below a range by its length, and by many deviations of the largest variance."""
    # In the unit of the elements: a fixed gap takes all digits of small ones in b + relu(a - b).
    least = abs(float(low)) / 16
    return float(low) - (max(12 * float(var) ** 0.5, float(high) - float(low), least) or 1.0)


def _hopeless(input: Any) -> tuple[Tensor, float]:
    """Elements that are certain and below all that vary, as padding is, and where they would lose as well."""
    mean, var = input.loc.detach(), input.cov.var.detach()
    varies = var > 0
    if bool(varies.all()):
        return ~varies, 0.0
    if not bool(varies.any()):
        return mean == -torch.inf, torch.finfo(mean.dtype).min
    low = torch.where(varies, mean, torch.inf).amin()
    floor = _under(low, torch.where(varies, mean, -torch.inf).amax(), var.max())
    return ~varies & (mean < floor), floor


def _composed_along(input: Any, windows: Windows) -> Any:
    """Maximum over sliding windows along one dimension, by way of differences and ReLU."""
    floor = None
    entrants = []
    for cut, where in windows.elements(input.shape[windows.dim]):
        entrant = input[cut]
        if any(where):
            floor = far_below(input) if floor is None else floor
            entrant = F.pad(entrant, where, value=floor)
        entrants.append(entrant)
    return _largest_of(entrants)


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
            windows = kernel_size, stride, padding, dilation, ceil_mode
            return operation(input, *windows), Undecided()
        if input.monotone_of is not None:  # max f(x) = f(max x), and x is closer to Gaussian
            given: Any
            given, function = input.monotone_of
            pooled: Any = operation(given, kernel_size, stride, padding, dilation, ceil_mode)
            return function(pooled)
        kernel = per_dim(kernel_size, dims)
        stride = per_dim(stride, dims) if stride else kernel
        further = per_dim(padding, dims), per_dim(dilation, dims), ceil_mode
        pooling = Pooling(kernel, stride, *further)

        def composed(x: Any) -> Any:
            outside, floor = _hopeless(x)
            inside = x
            if some := bool(outside.any()):  # differences from them would lose every digit
                inside = torch.where(outside, floor, x)
            for each in pooling.windows(x.shape):
                inside = _composed_along(inside, each)
            if not some:
                return inside
            alone = -pooling.plain(-outside.to(x.dtype)) == 1  # windows that hold nothing else
            return torch.where(alone, pooling.plain(x.loc), inside)

        return Joint(
            (input,),
            function=pooling.plain,
            moments=lambda mean, var: largest_in_windows(mean, var, pooling),
            composed=composed,
        )

    max_pool.__name__ = f"max_pool{dims}d"


_register_max_pool(F.max_pool1d, 1, torch.max_pool1d)
_register_max_pool(F.max_pool2d, 2, torch.max_pool2d)
_register_max_pool(F.max_pool3d, 3, torch.max_pool3d)


def _register_with_indices(
    operation: Callable[..., Any], plain: Callable[..., Tensor], *spellings: Callable[..., Any]
) -> None:
    @rule(operation, *spellings, exact=False, source="that of the maximum; the indices are random")
    def max_pool_with_indices(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> tuple[Any, Undecided]:
        pooled = plain(input, kernel_size, stride, padding, dilation, ceil_mode)
        return pooled, Undecided()

    max_pool_with_indices.__name__ = operation.__name__


_register_with_indices(F.max_pool1d_with_indices, F.max_pool1d, torch.max_pool1d_with_indices)
_register_with_indices(F.max_pool2d_with_indices, F.max_pool2d)
_register_with_indices(F.max_pool3d_with_indices, F.max_pool3d)
