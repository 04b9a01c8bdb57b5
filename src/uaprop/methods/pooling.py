"""Variances estimated from few draws, made steadier by their neighbours.

A variance estimated with ``d`` degrees of freedom has a relative error of ``√(2/d)``: 35% with sixteen. The
outputs of one network for one input have much in common, though: the share of their variance that
is *not* linear differs less from output to output than that. So the logarithms of the shares are drawn
towards their average, the more the less they differ beyond what chance explains (James & Stein 1961;
Efron & Morris 1975). With many draws, or outputs that have little in common, nothing is drawn anywhere.

:func:`pooled` does so within a batch element, for what is left beside a linear response; :func:`moderated`
for outputs and batch elements at once, where nothing else is known of the variances. (Smyth's moderated
variances, 2004, have one level where these have three.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics.moments import root

__all__ = ["Moderated", "moderated", "normal_error", "pooled", "squared_correlations"]

_FEWEST = 4  # with fewer outputs their average says too little
_ALIKE = 0.05  # where chance explains less of the differences, outputs say nothing of each other


def pooled(factors: Tensor, linear: Tensor, freedom: int) -> tuple[Tensor, Tensor]:
    """Steady the variances of a sampled covariance ``Fᵀ F``.

    The logarithm of a variance's estimate has the error ``ψ(d/2) - log(d/2)`` on average and the
    variance ``ψ′(d/2)``, about ``2/d``. With ``l_k = log(var_k / linear_k)``, their average ``c`` and the
    spread ``τ²`` beyond that, ``l_k`` becomes ``c + w (l_k - c)`` with ``w = τ²/(τ² + ψ′)``. The factors are
    scaled to fit, so correlations stay.

    Args:
        factors: ``F``, ``(stack, batch, outputs)``, with ``freedom`` degrees of freedom.
        linear: ``(batch, outputs)``, the variances that theirs are compared with.
        freedom: the degrees of freedom ``d``.

    Returns:
        The factors, and the relative standard error of their variances ``(batch, outputs)``.
    """
    bias, chance = _logarithm(freedom)
    var = factors.square().sum(0)
    usable = (linear > 0) & (var > 0)
    count = usable.sum(-1, keepdim=True)
    share = torch.where(
        usable, torch.where(usable, var, 1) / torch.where(usable, linear, 1), 1
    ).log()
    average = share.sum(-1, keepdim=True) / count.clamp_min(1)
    apart = torch.where(usable, share - average, 0)
    spread = apart.square().sum(-1, keepdim=True) / (count - 1).clamp_min(1) - chance
    spread = spread.clamp_min(0)
    weight = torch.where(usable & (count >= _FEWEST), spread / (spread + chance), 1)
    scale = torch.exp((1 - weight) * (-bias - apart) / 2)
    # what is left of chance: the part not pooled away, and the average's own, outputs being correlated
    unit = factors / torch.where(usable, root(var), torch.inf)
    alike = torch.einsum("rbk,sbk->brs", unit, unit).square().sum((-2, -1)).unsqueeze(-1)
    alike = alike / count.square().clamp_min(1)
    error = 2 / freedom * (weight + (1 - weight).square() * alike)
    return factors * scale, error.sqrt()


class Moderated(NamedTuple):
    """Steadied variances.

    Attributes:
        scale: what to multiply the standard deviations with.
        own: the part of a variance's own chance that is still in it, between 0 and 1.
        error: the squared error that is left, as a part of what it was.

    All are ``(batch, outputs)``.
    """

    scale: Tensor
    own: Tensor
    error: Tensor


def moderated(var: Tensor, squares: Tensor, freedom: int, together: bool = True) -> Moderated:
    """Steady variances by what outputs and batch elements have in common.

    With ``l = log var``, written as ``l_bk = c + r_b + k_k + i_bk``: an average, a term for every batch
    element, one for every output, and the rest. Each kind of term is drawn towards zero by the part of its
    mean square that chance explains (James & Stein), ``(p - 2) n / Σ term²``, with ``p`` degrees of
    freedom among the terms and ``n`` what chance adds to the square of one.

    A single variance has the chance ``ψ′(d/2)``. Two outputs of a batch element share ``ρ²`` of it, ``ρ``
    being their correlation; batch elements are independent. So ``n`` is ``ψ′ (ρ² + (1 - ρ²)/K)`` for ``r``,
    ``ψ′ (1 - ρ²)/B`` for ``k`` and ``ψ′ (1 - ρ²)`` for ``i``, with the average ``ρ²`` of all pairs.

    Args:
        var: ``(batch, outputs)``, sampled.
        squares: the sum of all ``ρ²`` of a batch element's outputs, each with itself too, ``(batch,)``.
        freedom: their degrees of freedom ``d``, at least 2.
        together: whether batch elements are independent; else each is treated by itself.

    Returns:
        What to scale deviations with, and what is left of chance.
    """
    if not together:
        each = zip(var.split(1), squares.split(1), strict=True)
        alone = [moderated(*one, freedom) for one in each]
        return Moderated(*(torch.cat(parts) for parts in zip(*alone, strict=True)))
    bias, chance = _logarithm(freedom)
    usable = (var > 0) & var.isfinite()
    height, width = int(usable.any(1).sum()), int(usable.any(0).sum())
    logs = torch.where(usable, var, 1).log()
    average = _mean(logs, usable, (0, 1))
    rows = _mean(logs - average, usable, (1,))
    columns = _mean(logs - average - rows, usable, (0,))
    rest = torch.where(usable, logs - average - rows - columns, 0)
    shared = _shared(squares, usable, freedom)
    of_rows = chance * (shared + (1 - shared) / max(1, width))
    of_columns = chance * (1 - shared) / max(1, height)
    of_rest = chance * (1 - shared)
    row, of_row = _weight(rows, of_rows, height - 1)
    column, of_column = _weight(columns, of_columns, width - 1)
    one, of_one = _weight(rest, of_rest, (height - 1) * (width - 1))

    across, along = 1 - 1 / max(1, height), 1 - 1 / max(1, width)
    parts = (of_rows * across, of_columns * along, of_rest * across * along)

    def left(*weights: Tensor) -> Tensor:
        average_own = of_rows * (1 - across)
        return average_own + sum(w * n for w, n in zip(weights, parts, strict=True))

    own = (left(row.square(), column.square(), one.square()) / chance).clamp(max=1)
    # An average of logarithms is too small by the bias; a variance by itself is right as it is.
    shift = (row - 1) * rows + (column - 1) * columns + (one - 1) * rest - (1 - own) * bias
    scale = torch.where(usable, torch.exp(shift / 2), 1)
    error = (left(row, column, one) + of_row + of_column + of_one) / chance
    return Moderated(scale, own.expand_as(scale), error.expand_as(scale))


def normal_error(freedom: int) -> float:
    """The squared relative error of a normal output's deviation, ``ψ′(d/2)/4``, about ``1/(2d)``."""
    return _logarithm(freedom)[1] / 4


def _logarithm(freedom: int) -> tuple[float, float]:
    """Bias and variance of the logarithm of a variance's estimate, ``χ²_d/d``."""
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    return float(torch.digamma(half) - half.log()), float(torch.polygamma(1, half))


def _mean(values: Tensor, usable: Tensor, dim: tuple[int, ...]) -> Tensor:
    total = torch.where(usable, values, 0).sum(dim, keepdim=True)
    return total / usable.sum(dim, keepdim=True).clamp_min(1)


def _weight(terms: Tensor, chance: Tensor, freedom: int) -> tuple[Tensor, Tensor]:
    """What is kept of terms, ``1 - s`` with ``s = (p - 2) n / Σ term²``; all of too few, or hardly alike.

    Returns:
        The weight, and for every term the squared error that it adds not to know the weight better,
        ``2/(p - 2) s² term²`` (Morris 1983).
    """
    if freedom < _FEWEST - 1:
        return torch.ones_like(chance), torch.zeros_like(chance)
    squares = terms.square()
    total = squares.sum().clamp_min(torch.finfo(torch.float64).tiny)
    shrink = ((freedom - 2) * chance / total).clamp(max=1)
    shrink = torch.where(shrink < _ALIKE, 0.0, shrink)
    return 1 - shrink, 2 / (freedom - 2) * shrink.square() * squares


def squared_correlations(covariance: Tensor) -> Tensor:
    """The sum of all ``ρ²`` in each of several matrices, ``(batch, outputs, outputs)``."""
    var = covariance.diagonal(dim1=1, dim2=2)
    rows = torch.where((var > 0) & var.isfinite(), var, torch.inf).reciprocal().unsqueeze(-1)
    squares = covariance.square().nan_to_num(0, 0, 0)  # an output that is no number is not counted
    return (rows.mT @ (squares @ rows)).flatten()


def _shared(squares: Tensor, usable: Tensor, freedom: int) -> Tensor:
    """The average of ``ρ²`` between two outputs, less what chance adds to it."""
    count = usable.sum(1)
    pairs = (count * (count - 1)).sum().clamp_min(1)
    between = (squares.sum() - count.sum()) / pairs
    return ((between * freedom - 1) / (freedom - 1)).clamp(0, 1)
