"""The probability that every element of a Gaussian vector is positive.

Separation of variables (Genz 1992): with ``x = mean + L y``, ``L`` a Cholesky factor and ``y`` independent,
the constraints are met one after the other, each by a one-dimensional tail probability given the ``y``
before it. Their product is smooth in the uniform variables it is averaged over, and is never zero by
chance: probabilities of 1e-6 and far below come out with as many digits as those of order one.

The constraints are met in the order of Gibson, Glasbey & Elston (1994), the least likely first. A singular
covariance has fewer ``y`` than constraints: each constraint then bounds the last ``y`` that it depends on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["orthant_probability", "upper_tail"]

_SQRT_HALF = math.sqrt(0.5)
_DETERMINED = 1e-12  # share of its variance below which an element follows from the others
_FAR = 1e10  # deviations from zero that are as good as infinitely many
_SMALLEST, _LARGEST = 1e-300, 1 - 2.0**-53
_IN_FLIGHT = 2**20  # numbers held at a time, and so the memory


def upper_tail(z: Tensor) -> Tensor:
    """``Q(z) = P(u > z)`` of a standard normal ``u``, relatively accurate for large ``z``."""
    return 0.5 * torch.erfc(z * _SQRT_HALF)


def orthant_probability(mean: Tensor, cov: Tensor, points: Tensor) -> Tensor:
    """``P(x ≥ 0)``, every element of it, for ``x ~ N(mean, cov)``.

    Args:
        mean: (problems, n), float64.
        cov: (problems, n, n), positive semi-definite; an element without variance is its mean.
        points: (count, at least n - 1), evenly spread in the unit cube.

    Returns:
        (problems,).
    """
    n = mean.shape[1]
    count = max(1, _IN_FLIGHT // (n * max(n, len(points) if n > 1 else 1)))
    parts = [
        _probability(*part, points)
        for part in zip(mean.split(count), cov.split(count), strict=True)
    ]
    return torch.cat(parts) if parts else mean.new_zeros(0)


def _probability(mean: Tensor, cov: Tensor, points: Tensor) -> Tensor:
    var = cov.diagonal(dim1=-2, dim2=-1)
    random = var > 0
    scale = torch.where(random, var, 1).rsqrt()
    mean = (mean * scale).clamp(-_FAR, _FAR)
    factor, closing = _factorised(mean, cov * scale.unsqueeze(-1) * scale.unsqueeze(-2), random)
    possible = (random | (mean >= 0)).all(1)
    return torch.where(possible, _integrated(mean, factor, closing, points), 0)


def _factorised(mean: Tensor, cov: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
    """``L`` of a correlation matrix, a column at a time, for the constraint least likely to hold next.

    How likely is judged with the ``y`` so far at their expectations.

    Returns:
        ``L``, (problems, n, rank), and for each row the column in which it ends, -1 for a row of zeros.
    """
    every = torch.arange(len(mean), device=mean.device)
    waiting = random.clone()
    closing = torch.full_like(waiting, -1, dtype=torch.long)
    columns: list[Tensor] = []
    while bool(waiting.any()):
        var = cov.diagonal(dim1=-2, dim2=-1)
        z = mean / var.clamp_min(_DETERMINED).sqrt()
        pivot = torch.where(waiting, z, torch.inf).argmin(1)
        left = waiting[every, pivot]  # problems of lower rank than others are done by now
        head = var[every, pivot].clamp_min(_DETERMINED).sqrt()
        column = cov[every, pivot] / head.unsqueeze(1)
        column = torch.where(waiting & left.unsqueeze(1), column, 0)
        cov = cov - column.unsqueeze(-1) * column.unsqueeze(-2)
        mean = mean + column * _expectation_above(-z[every, pivot]).unsqueeze(1)
        closed = waiting & (cov.diagonal(dim1=-2, dim2=-1) <= _DETERMINED)
        closed[every, pivot] = left
        closing = torch.where(closed, len(columns), closing)
        waiting = waiting & ~closed
        columns.append(column)
    factor = torch.stack(columns, -1) if columns else mean.new_zeros((*mean.shape, 0))
    return factor, closing


def _expectation_above(edge: Tensor) -> Tensor:
    """``E[u | u > edge] = φ(edge)/Q(edge)``."""
    scaled: Tensor = torch.special.erfcx(edge * _SQRT_HALF)
    return math.sqrt(2 / math.pi) / scaled


def _integrated(mean: Tensor, factor: Tensor, closing: Tensor, points: Tensor) -> Tensor:
    rank = factor.shape[-1]
    if rank < 2:
        points = points[:1]  # nothing to average over: the answer is exact
    product = mean.new_ones((len(mean), len(points)))
    y = mean.new_zeros((len(mean), rank, len(points)))
    for step in range(rank):
        ends = closing == step
        width = int(ends.sum(1).max())
        ends, rows = ends.long().topk(width, dim=1)
        row = factor.gather(1, rows.unsqueeze(-1).expand(-1, -1, rank))
        reached = mean.gather(1, rows).unsqueeze(-1) + row[:, :, :step] @ y[:, :step]
        slope = row[:, :, step : step + 1]
        edge = -reached / torch.where(slope == 0, 1, slope)
        met = ends.bool().unsqueeze(-1)
        low = torch.where(met & (slope > 0), edge, -torch.inf).amax(1)
        high = torch.where(met & (slope < 0), edge, torch.inf).amin(1)
        mirrored = low + high < 0  # so that the tails that are subtracted are the small ones
        low, high = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
        mass = top = upper_tail(low)
        if bool((high < torch.inf).any()):
            mass = (top - upper_tail(high)).clamp_min(0)
        product = product * mass
        if step + 1 < rank:
            tail = (top - points[:, step] * mass).clamp(_SMALLEST, _LARGEST)
            drawn = -torch.special.ndtri(tail)
            y[:, step] = torch.where(mirrored, -drawn, drawn)
    return product.mean(1)
