"""What a Gaussian is made from, checked before any work is done."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .kinds import Random
from .statistic import Statistic

__all__ = ["as_mean", "as_spread", "check_spread"]


def as_mean(mean: Tensor | float) -> Tensor:
    """The mean as a floating-point tensor.

    Returns:
        The tensor.

    Raises:
        TypeError: if it is random already or not floating-point.
    """
    if isinstance(mean, Random):
        raise TypeError("the mean is a Gaussian already; pass a tensor")
    loc = mean if isinstance(mean, Tensor) else torch.as_tensor(mean)
    if isinstance(loc, Statistic):
        loc = loc.as_subclass(Tensor)
    if not loc.is_floating_point():
        raise TypeError(
            f"the mean must be floating-point, not {loc.dtype}; convert it, as in mean.float()"
        )
    return loc


def as_spread(value: Any, name: str, loc: Tensor) -> Tensor:
    """A variance or deviation in the mean's dtype and on its device, checked.

    Returns:
        The tensor, not yet broadcast.

    Raises:
        TypeError: if it is random or complex.
        ValueError: if it is on another device, negative, infinite or NaN.
    """
    if isinstance(value, Random):
        raise TypeError(f"{name} is a Gaussian; pass a tensor, such as its .var")
    if isinstance(value, Tensor):
        if value.device != loc.device and value.ndim > 0:
            raise ValueError(
                f"mean is on {loc.device} but {name} on {value.device}; move one of them"
            )
        if value.is_complex():
            raise TypeError(f"{name} must be real, not {value.dtype}")
        if isinstance(value, Statistic):
            value = value.as_subclass(Tensor)
        spread = value.to(device=loc.device, dtype=loc.dtype)
    else:
        spread = torch.as_tensor(value, dtype=loc.dtype, device=loc.device)
    check_spread(spread, name)
    return spread


def check_spread(spread: Tensor, name: str) -> None:
    """Refuse a variance or deviation that is negative, infinite or NaN.

    Where values cannot be looked at (a trace, ``torch.vmap``, the meta device) nothing is checked.

    Raises:
        ValueError: naming what is wrong.
    """
    if not _has_values(spread) or spread.numel() == 0:
        return
    low, high = (bound.item() for bound in spread.detach().aminmax())
    if not (low >= 0 and high < math.inf):
        if low < 0:
            problem = f"negative (the smallest is {low:.6g})"
        else:
            problem = "infinite or NaN"
        raise ValueError(f"{name} must be finite and not negative; some of it is {problem}")


def _has_values(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or tensor.is_meta:
        return False
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):  # a gradient's values are inside
        if functorch.is_batchedtensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)
    return True


def as_factors(factors: Any, mean: Tensor) -> Tensor:
    """Factors ``(k, *shape)`` as a tensor like the mean.

    Returns:
        The factors in the mean's dtype, on its device.

    Raises:
        ValueError: if the shapes do not fit or a factor is not finite.
    """
    spread = torch.as_tensor(factors, dtype=mean.dtype, device=mean.device)
    if spread.shape[1:] != mean.shape or spread.ndim != mean.ndim + 1 or len(spread) == 0:
        raise ValueError(
            f"factors must have the shape (k, *{tuple(mean.shape)}), one for each source of noise, "
            f"not {tuple(spread.shape)}"
        )
    if _has_values(spread) and not bool(spread.isfinite().all()):
        raise ValueError("factors must be finite")
    return spread
