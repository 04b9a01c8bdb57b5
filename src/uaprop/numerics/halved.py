"""The largest of three neighbours, two apart: the pooling that ResNets and DenseNets begin with.

Windows of three elements with a stride of two halve a picture. Rows are taken by twos, ``(pairs, 2 length)``
as they are in memory: a window is over a pair and over the second row of the pair before, if there is one.
So one compiled loop reads every element where it is, and nothing is copied, padded or written in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .compiled import COMPILED, looped
from .maximum import Marginal, larger_of_values

__all__ = ["halved"]

_OUTSIDE = -1e30  # loses against everything, and subtracts


def halved(mean: Tensor, var: Tensor, dims: int) -> Marginal | None:
    """Clark's tournament along dimensions that are padded by one, each after the one before it.

    Args:
        mean: ``(planes, *sizes, width)``, contiguous values; all sizes are even.
        var: the same.
        dims: how many sizes there are.

    Returns:
        Mean and variance, ``(planes, *sizes/2, width)``; None if there is no compiled loop.
    """
    if mean.dtype not in COMPILED or var.dtype != mean.dtype:
        return None
    for dim in range(1, dims + 1):
        planes, count = mean.shape[:dim].numel(), mean.shape[dim] // 2
        shape = (*mean.shape[:dim], count, *mean.shape[dim + 1 :])
        rows = (planes * count, -1)
        if rows[0] < 2:
            return None
        found = looped(_of_pairs, "ddi", [mean.view(rows), var.view(rows), _before(planes, count)])
        if found is None:
            return None
        mean, var = found[0].view(shape), found[1].view(shape)
    return mean, var


def _before(planes: int, count: int) -> Tensor:
    """For every pair the one before it in the same plane, or -1."""
    pairs = torch.arange(-1, planes * count - 1, device="cpu")
    pairs[::count] = -1
    return pairs


def _of_pairs(mean: Tensor, var: Tensor, before: Tensor) -> Marginal:
    """The largest of each pair ``(pairs, 2 · length)`` and of the second row of another, if not -1."""
    length = mean.shape[1] // 2
    mean, others = mean.clamp_min(_OUTSIDE), before.clamp_min(0)
    first = (before < 0).unsqueeze(1)
    outer = (
        torch.where(first, _OUTSIDE, mean[others][:, length:]),
        torch.where(first, 0, var[others][:, length:]),
    )
    inner = larger_of_values(mean[:, :length], var[:, :length], mean[:, length:], var[:, length:])
    return larger_of_values(*outer, *inner)
