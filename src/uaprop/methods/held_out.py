"""How far a calibration is off for inputs that it was not fitted to: two-fold cross-validation.

Factors are fitted to every second input and applied to the others, and the other way round. What they give
there, a mean ``m`` and a standard deviation ``s``, is compared with the mean ``ȳ`` and the standard deviation
``t`` of the ``n`` samples that the fit to all inputs has made of that output. Samples have noise of their
own: with the kurtosis ``κ`` of the outputs

    E t² = σ²,    E t = k σ,    k = exp(-c/2),    c = (κ - 1)/(4 (n - 1)),    Var ȳ = σ²/n

with ``c`` the relative variance of ``t`` to first order, ``1/(2(n-1))`` of normal outputs. So

    e_std² = mean [1 - 2 t/(k s) + t²/s²],        e_mean² = mean [((m - ȳ)² - t²/n)/s²]

are the mean squares of ``1 - σ/s`` and of ``(m - μ)/s``, whose roots times ``s`` are the standard errors of a
result. The squares are taken for no smaller than their own standard errors, which is what so few inputs can
tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..numerics.moments import root, widened

__all__ = ["FEWEST", "held_out_error"]

FEWEST = 4  # inputs: two in each half
_FARTHEST = 5  # times too small: few such elements would decide for all


def held_out_error(pieces: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[float, float]:
    """The errors of one output of a model.

    Elements that no sample has moved are left out, if there are others: what happens less than once in so
    many samples cannot be told from what never happens.

    Args:
        pieces: for each part of the inputs the means ``(items, …)`` that the other part's calibration gives,
            the variances, and the samples ``(n, items, …)``.

    Returns:
        ``e_std`` and ``e_mean``.
    """
    mean, var = (torch.cat([_rows(piece[i], 1) for piece in pieces]) for i in (0, 1))
    samples = torch.cat([_rows(piece[2], 2) for piece in pieces], 1)
    count = len(samples)
    center, sampled = samples.mean(0), samples.var(0)
    known = (sampled > 0) & sampled.isfinite() & mean.isfinite() & var.isfinite()
    if not known.any():
        known = sampled.isfinite() & mean.isfinite() & var.isfinite()
    bias = _bias(samples - center, known)
    unit = torch.maximum(var, sampled / _FARTHEST**2)
    unit = torch.where(known & (unit > 0), unit, 1)
    claimed, found = root(var / unit), root(sampled / unit)  # the first is 1 but for the cut
    std = claimed.square() - 2 * claimed * found / bias + found.square()
    shift = ((mean - center).square() - sampled / count) / unit
    return _pooled(std, known), _pooled(shift, known)


def _rows(values: Tensor, dims: int) -> Tensor:
    """What is beyond so many dimensions as the last one, in float64."""
    return widened(values).double().unsqueeze(-1).flatten(dims)


def _bias(offsets: Tensor, known: Tensor) -> float:
    """``k``, with the kurtosis that all outputs have in common."""
    count = len(offsets)
    squares = torch.where(known, offsets, 0).square()
    average = squares.mean(0)
    varies = average > 0
    if not varies.any():
        return 1.0
    fourth = (squares[:, varies] / average[varies]).square().mean()
    kurtosis = float(fourth) * (count + 1) / (count - 1)  # unbiased of normal outputs
    return math.exp(-(kurtosis - 1) / (8 * (count - 1)))


def _pooled(squares: Tensor, known: Tensor) -> float:
    """The root of the average over the elements of an item, and over items."""
    elements = known.sum(1)
    items = torch.where(known, squares, 0).sum(1)[elements > 0] / elements[elements > 0]
    if len(items) < 2:
        return float(items.sum().clamp_min(0)) ** 0.5
    return float(torch.maximum(items.mean(), items.std() * len(items) ** -0.5)) ** 0.5
