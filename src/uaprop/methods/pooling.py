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

import math
from collections.abc import Callable, Sequence
from functools import cache
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
        scale: what to multiply the standard deviations with, ``(batch, outputs)``.
        left: gives, for who asks, the part of a variance's own chance that is still in it, between 0 and 1;
            and the squared error that is left, as a part of what it was; both ``(batch, outputs)``.
    """

    scale: Tensor
    left: Callable[[], tuple[Tensor, Tensor]]


def moderated(
    var: Tensor, squares: Tensor | None, freedom: int, together: bool = True
) -> Moderated:
    """Steady variances by what outputs and batch elements have in common.

    With ``l = log var``, written as ``l_bk = c + r_b + k_k + i_bk``: an average, a term for every batch
    element, one for every output, and the rest. Each kind of term is drawn towards zero by the part of its
    mean square that chance explains (James & Stein), ``(p - 2) n / Σ term²``, with ``p`` degrees of
    freedom among the terms and ``n`` what chance adds to the square of one.

    A single variance has the chance ``ψ′(d/2)``. Two outputs of a batch element share ``ρ²`` of it, ``ρ``
    being their correlation; batch elements are independent. So ``n`` is ``ψ′ (ρ² + (1 - ρ²)/K)`` for ``r``,
    ``ψ′ (1 - ρ²)/B`` for ``k`` and ``ψ′ (1 - ρ²)`` for ``i``, with the average ``ρ²`` of all pairs. One
    degree of freedom, from two draws, has nothing to say of correlations. Then all that is seen of ``i`` is
    taken for chance, as far as chance can do it, and tells ``1 - ρ²``.

    Args:
        var: ``(batch, outputs)``, sampled.
        squares: the sum of all ``ρ²`` of a batch element's outputs, each with itself too, ``(batch,)``; None
            of two draws.
        freedom: their degrees of freedom ``d``.
        together: whether batch elements are independent; else each is treated by itself.

    Returns:
        What to scale deviations with, and what is left of chance.
    """
    if not together:
        own_squares = [None] * len(var) if squares is None else squares.split(1)
        alone = [moderated(*one, freedom) for one in zip(var.split(1), own_squares, strict=True)]
        return _joined(alone)
    bias, chance = _logarithm(freedom)
    logs = var.log()
    total = float(logs.sum())
    usable = None  # if all are: positive, and numbers
    if math.isfinite(total):
        height, width = var.shape
        average = total / max(1, var.numel())
        rows = logs.mean(1, keepdim=True)
        columns = logs.mean(0, keepdim=True).sub_(average)
        rest = (logs - rows).sub_(columns)
        rows = rows.sub_(average)
    else:
        usable = (var > 0) & (var < torch.inf)
        height, width = (int(usable.any(dim).sum()) for dim in (1, 0))
        logs = torch.where(usable, logs, 0)
        logs = logs - _mean_of(usable, logs, (0, 1))
        rows = _mean_of(usable, logs, (1,))
        columns = _mean_of(usable, logs - rows, (0,))
        rest = torch.where(usable, logs - rows - columns, 0)
    if squares is None:
        degrees = max(1, (height - 1) * (width - 1))
        shared = max(0.0, 1 - _squares(rest) / (degrees * chance))
    else:
        shared = _shared(squares, var > 0 if usable is None else usable, freedom)
    across, along = 1 - 1 / max(1, height), 1 - 1 / max(1, width)
    terms = (
        _Terms.drawn(rows, chance * (shared + (1 - shared) / max(1, width)), height - 1),
        _Terms.drawn(columns, chance * (1 - shared) / max(1, height), width - 1),
        _Terms.drawn(rest, chance * (1 - shared), (height - 1) * (width - 1)),
    )
    shares = (across, along, across * along)
    parts = [term.chance * share for term, share in zip(terms, shares, strict=True)]
    average_own = terms[0].chance * (1 - across)
    kept = [term.weight for term in terms]
    own = min(
        1.0, (average_own + sum(w * w * n for w, n in zip(kept, parts, strict=True))) / chance
    )
    # An average of logarithms is too small by the bias; a variance by itself is right as it is.
    scale = (rest * (-terms[2].shrink / 2)).sub_((1 - own) * bias / 2)
    for term in terms[:2]:
        if term.shrink > 0:
            scale = scale.sub_(term.values, alpha=term.shrink / 2)
    scale = scale.exp_() if usable is None else torch.where(usable, scale.exp_(), 1)

    def left() -> tuple[Tensor, Tensor]:
        least = average_own + sum(w * n for w, n in zip(kept, parts, strict=True))
        error = torch.full_like(scale, least / chance)
        for term in terms:
            if term.shrink > 0:
                error += term.doubt() / chance
        return torch.full_like(scale, own), error

    return Moderated(scale, left)


def _joined(alone: Sequence[Moderated]) -> Moderated:
    """Batch elements that were steadied by themselves."""

    def left() -> tuple[Tensor, Tensor]:
        own, error = zip(*(one.left() for one in alone), strict=True)
        return torch.cat(own), torch.cat(error)

    return Moderated(torch.cat([one.scale for one in alone]), left)


class _Terms(NamedTuple):
    """One kind of term, and what is kept of it.

    Attributes:
        values: the terms.
        chance: what chance adds to the square of one, ``n``.
        shrink: the part ``s`` that is taken off, ``(p - 2) n / Σ term²``; none of too few, or hardly alike.
        freedom: ``p - 2``.
    """

    values: Tensor
    chance: float
    shrink: float
    freedom: int

    @classmethod
    def drawn(cls, values: Tensor, chance: float, freedom: int) -> _Terms:
        """With ``p`` degrees of freedom among them."""
        if freedom < _FEWEST - 1:
            return cls(values, chance, 0.0, freedom - 2)
        total = _squares(values)
        shrink = min(1.0, (freedom - 2) * chance / total) if total > 0 else 1.0
        return cls(values, chance, 0.0 if shrink < _ALIKE else shrink, freedom - 2)

    @property
    def weight(self) -> float:
        return 1 - self.shrink

    def doubt(self) -> Tensor:
        """The squared error of not knowing the weight better, ``2/(p - 2) s² term²`` (Morris 1983)."""
        return self.values.square() * (2 / self.freedom * self.shrink**2)


def normal_error(freedom: int) -> float:
    """The squared relative error of a normal output's deviation, ``ψ′(d/2)/4``, about ``1/(2d)``."""
    return _logarithm(freedom)[1] / 4


@cache
def _logarithm(freedom: int) -> tuple[float, float]:
    """Bias and variance of the logarithm of a variance's estimate, ``χ²_d/d``."""
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    return float(torch.digamma(half) - half.log()), float(torch.polygamma(1, half))


def _squares(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) ** 2


def _mean_of(usable: Tensor, values: Tensor, dim: tuple[int, ...]) -> Tensor:
    total = torch.where(usable, values, 0).sum(dim, keepdim=True)
    return total / usable.sum(dim, keepdim=True).clamp_min(1)


def squared_correlations(covariance: Tensor) -> Tensor:
    """The sum of all ``ρ²`` in each of several matrices, ``(batch, outputs, outputs)``."""
    var = covariance.diagonal(dim1=1, dim2=2)
    rows = torch.where((var > 0) & var.isfinite(), var, torch.inf).reciprocal().unsqueeze(-1)
    squares = covariance.square().nan_to_num(0, 0, 0)  # an output that is no number is not counted
    return (rows.mT @ (squares @ rows)).flatten()


def _shared(squares: Tensor, usable: Tensor, freedom: int) -> float:
    """The average of ``ρ²`` between two outputs, less what chance adds to it."""
    count = usable.sum(1)
    pairs = max(1, int((count * (count - 1)).sum()))
    between = float(squares.sum() - count.sum()) / pairs
    return min(1.0, max(0.0, (between * freedom - 1) / (freedom - 1)))
