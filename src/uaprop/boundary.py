"""What a Gaussian is made from, checked before any work is done."""

from __future__ import annotations

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

    Raises:
        ValueError: naming what is wrong.
    """
    if torch.compiler.is_compiling() or spread.numel() == 0 or spread.is_meta:
        return
    low, high = spread.detach().aminmax()
    if not (low >= 0 and high < torch.inf):
        if low < 0:
            problem = f"negative (the smallest is {low.item():.6g})"
        else:
            problem = "infinite or NaN"
        raise ValueError(f"{name} must be finite and not negative; some of it is {problem}")
