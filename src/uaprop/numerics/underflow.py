"""Variances that are too small for a dtype: they must not become zero unnoticed."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["has_values", "safe", "smallest_lost"]

_TOLERANCE = 0.05  # relative, of a variance: twice that of its root
_STEPS = 10  # of the smallest number: from there on rounding is below the tolerance


def has_values(tensor: Tensor) -> bool:
    """Whether values can be looked at: not in a trace, inside of ``torch.vmap`` or on the meta device."""
    if torch.compiler.is_compiling() or tensor.is_meta:
        return False
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):  # a gradient's values are inside
        if functorch.is_batchedtensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)
    return True


@functools.cache
def safe(dtype: torch.dtype) -> float:
    """The variance from which on rounding to a dtype changes little."""
    limits = torch.finfo(dtype)
    return _STEPS * limits.tiny * limits.eps


def smallest_lost(exact: Tensor, rounded: Tensor, squared: bool = False) -> float | None:
    """The smallest of what another dtype does not hold the variance of to 5%, zeros apart.

    Between zero and the smallest normal number a dtype has few numbers, and below those none.

    Args:
        exact: variances; or standard deviations.
        rounded: what they are in the other dtype.
        squared: whether ``exact`` are standard deviations.

    Returns:
        That element of ``exact``; None if all are kept, or values cannot be looked at.
    """
    if rounded.numel() == 0 or not has_values(exact) or not has_values(rounded):
        return None
    exact, rounded = exact.detach(), rounded.detach()
    if bool(rounded.amin() >= safe(rounded.dtype)):
        return None
    exact, rounded = exact.cpu(), rounded.cpu()  # some devices have no float64
    wanted = exact.double().square() if squared else exact.double()
    off = (rounded.double() - wanted).abs() > _TOLERANCE * wanted
    lost = (off | (rounded == 0)) & (exact != 0)
    return float(exact[lost].min()) if bool(lost.any()) else None
