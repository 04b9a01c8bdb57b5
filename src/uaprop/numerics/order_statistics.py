"""The sorted values of several independent Gaussians, each with its mean and variance.

The ``r``-th smallest is at most ``t`` if more than ``r`` of them are: ``F_r(t) = P(N(t) > r)``, with ``N``
the number of elements below ``t``. That is a sum of independent indicators, of probabilities
``Φ((t - mᵢ)/σᵢ)``. Around the ``r``-th smallest mean ``c``::

    E[x - c]    = ∫_{t>c} (1 - F) - ∫_{t<c} F
    E[(x - c)²] = 2 ∫_{t>c} (t - c)(1 - F) + 2 ∫_{t<c} (c - t) F

by Gauss-Legendre quadrature between the points ``mᵢ + kσᵢ``: between two of them nothing is steep.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .maximum import Marginal
from .moments import root
from .quadrature import legendre, tensors

__all__ = ["is_certain", "order_statistics", "work"]

_RULE = legendre(5)
_SIDE = (1.0, 2.0, 3.0, 4.5, 6.0, 8.0)  # standard deviations
_STEPS = (*(-k for k in reversed(_SIDE)), 0.0, *_SIDE)
_CERTAIN = 6.0  # standard deviations of both sides
_BLOCK = 2**21  # values at a time
_SINGLE = ("mps",)  # devices without float64


def work(count: int, rows: int, ranks: int) -> int:
    """How many values a row of so many elements takes, times the rows: a bound on the time."""
    return len(_RULE) * len(_STEPS) * count * count * ranks * rows


def is_certain(mean: Tensor, var: Tensor) -> bool:
    """Whether no two elements of a row along the last dimension may change places."""
    mean, index = mean.sort(-1)
    reach = _CERTAIN * var.gather(-1, index).sqrt()
    highest = (mean + reach).cummax(-1).values
    lowest = (mean - reach).flip(-1).cummin(-1).values.flip(-1)
    return bool((highest[..., :-1] <= lowest[..., 1:]).all())


def order_statistics(mean: Tensor, var: Tensor, first: int, last: int) -> Marginal:
    """Mean and variance of the sorted values along the last dimension, from the smallest.

    Args:
        mean: ``(…, elements)``.
        var: of the same shape.
        first: the first rank that is wanted, from 0.
        last: the rank after the last one.

    Returns:
        Mean and variance, ``(…, last - first)``.
    """
    count, shape, dtype = mean.shape[-1], mean.shape[:-1], mean.dtype
    wide = dtype if mean.device.type in _SINGLE else torch.float64
    mean, var = (t.reshape(-1, count).to(wide) for t in (mean, var))
    rows = max(1, _BLOCK // max(1, len(_RULE) * len(_STEPS) * count * (last - first + 1)))
    if torch.compiler.is_compiling() or len(mean) <= rows:
        found = _moments(mean, var, first, last)
    else:
        parts = zip(mean.split(rows), var.split(rows), strict=True)
        columns = zip(*(_moments(m, v, first, last) for m, v in parts), strict=True)
        found = tuple(torch.cat(column) for column in columns)  # type: ignore[assignment]
    value, spread = (t.reshape(*shape, last - first).to(dtype) for t in found)
    return value, spread


def _moments(mean: Tensor, var: Tensor, first: int, last: int) -> Marginal:
    std = root(var)
    with torch.no_grad():  # where c and the ends are does not matter
        centre = mean.sort(-1).values[:, first:last].unsqueeze(1)  # (rows, 1, ranks)
        steps = torch.tensor(_STEPS, dtype=mean.dtype, device=mean.device)
        edges = (mean.unsqueeze(-1) + std.unsqueeze(-1) * steps).flatten(1).sort(-1).values
        nodes, weights = tensors(_RULE, mean)
        width = edges.diff(dim=-1).unsqueeze(-1)
        t = (edges[:, :-1].unsqueeze(-1) + width * nodes).flatten(1)  # (rows, points)
        step = (width * weights).flatten(1).unsqueeze(-1)
    below = _at_most(t, mean, std, first, last)  # (rows, points, ranks)
    away = t.unsqueeze(-1) - centre
    right = away > 0
    tail = torch.where(right, 1 - below, below)
    side = torch.where(right, 1.0, -1.0).to(mean.dtype)
    shift = (side * tail * step).sum(1)
    square = 2 * (away.abs() * tail * step).sum(1)
    return centre.squeeze(1) + shift, (square - shift.square()).clamp_min(0)


def _at_most(t: Tensor, mean: Tensor, std: Tensor, first: int, last: int) -> Tensor:
    """``F_r(t)`` for the ranks from ``first`` to ``last``, ``(rows, points, ranks)``.

    Counted from the side that is nearer: how many are below, or how many are not.

    Returns:
        The probabilities.
    """
    count = mean.shape[-1]
    noisy = std > 0
    scale = math.sqrt(0.5) / torch.where(noisy, std, 1)
    z = (t.unsqueeze(-1) - mean.unsqueeze(1)) * scale.unsqueeze(1)  # (rows, points, elements)
    sure = (t.unsqueeze(-1) >= mean.unsqueeze(1)).to(t.dtype)
    noisy = noisy.unsqueeze(1)
    under = torch.where(noisy, 0.5 * torch.erfc(-z), sure)
    over = torch.where(noisy, 0.5 * torch.erfc(z), 1 - sure)
    if last <= count - first:  # P(N ≤ r) from counts below, up to last - 1
        return 1 - _counts(under, over, last).cumsum(-1)[..., first:last]
    # P(N > r) = P(not below < n - r)
    wanted = _counts(over, under, count - first).cumsum(-1)  # P(not below ≤ j)
    return wanted[..., count - last : count - first].flip(-1)


def _counts(yes: Tensor, no: Tensor, most: int) -> Tensor:
    """The probabilities of 0, 1, …, ``most - 1`` of independent events along the last dimension."""
    start = torch.ones_like(yes[..., :1])
    chances = torch.cat([start, torch.zeros_like(start).expand(*start.shape[:-1], most - 1)], -1)
    for p, q in zip(yes.unbind(-1), no.unbind(-1), strict=True):
        moved = torch.nn.functional.pad(chances[..., :-1], (1, 0))
        chances = chances * q.unsqueeze(-1) + moved * p.unsqueeze(-1)
    return chances
