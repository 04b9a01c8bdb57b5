"""Variances estimated from few samples, shrunk towards those of the other outputs.

A variance estimated with ``d`` degrees of freedom has a relative error of ``√(2/d)``: 35% with sixteen. The
outputs of one network for one input have much in common, though: the share of their variance that
is *not* linear differs less from output to output than that. So the logarithms of the shares are shrunk
towards their average, the more the less they differ beyond what sampling noise explains (James & Stein 1961;
Efron & Morris 1975). With many samples, or outputs that have little in common, nothing is shrunk.

:func:`pooled` does so for what is left beside a linear response; :func:`moderated` where nothing else is
known of the variances (as Smyth 2004 does). Both stay within a batch element: its result does not depend on
its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics.moments import root

__all__ = [
    "Moderated",
    "moderated",
    "normal_error",
    "pooled",
    "squared_correlations",
    "squared_overlaps",
    "tails",
]

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
    alike = squared_overlaps(unit.transpose(0, 1)).unsqueeze(-1)
    alike = alike / count.square().clamp_min(1)
    error = 2 / freedom * (weight + (1 - weight).square() * alike)
    return factors * scale, error.sqrt()


def tails(factors: Tensor) -> Tensor:
    """How many times larger the error of sampled variances is than that of normal values.

    ``Var(r²) = (κ - 1) Var(r)²`` with the kurtosis ``κ``, 3 of normal values and more where a few samples
    decide. A batch element's outputs have it in common.

    Returns:
        ``√((κ - 1)/2)`` or 1, ``(batch, 1)``.
    """
    squares = factors.square()
    average = squares.mean(0)
    varies = average > 0
    fourth = (squares / torch.where(varies, average, 1)).square().mean(0)
    count = varies.sum(-1, keepdim=True).clamp_min(1)
    kurtosis = torch.where(varies, fourth, 0).sum(-1, keepdim=True) / count
    return ((kurtosis - 1) / 2).clamp_min(1).sqrt()


class Moderated(NamedTuple):
    """Shrunk variances.

    Attributes:
        scale: what to multiply the standard deviations with, ``(batch, outputs)``.
        left: gives the part of a variance's own sampling noise that is still in it, between 0 and 1; and the
            squared error that is left, as a part of what it was; both ``(batch, outputs)``.
    """

    scale: Tensor
    left: Callable[[], tuple[Tensor, Tensor]]


def moderated(var: Tensor, squares: Tensor | None, freedom: int) -> Moderated:
    """Shrink the variances of each batch element's outputs towards what they have in common.

    With ``l = log var``, written as ``l_k = c + i_k``: an average and the rest. The rest is shrunk towards
    zero by the part of its mean square that sampling noise explains (James & Stein),
    ``s = (p - 2) n / Σ i²``, with ``p`` degrees of freedom among the terms and ``n`` what the noise adds to
    the square of one.

    A single variance has the noise ``ψ′(d/2)``. Two outputs share ``ρ²`` of it, ``ρ`` being their
    correlation. So ``n`` is ``ψ′ (1 - ρ²)``, and the noise of ``c`` is ``ψ′ (ρ² + (1 - ρ²)/K)``, with the
    average ``ρ²`` of all pairs of the ``K`` outputs. One degree of freedom, from two samples, has nothing to
    say of correlations. Then all that is seen of ``i`` is taken for noise, as far as noise can do it, and
    tells ``1 - ρ²``.

    Args:
        var: ``(batch, outputs)``, sampled.
        squares: the sum of all ``ρ²`` of a batch element's outputs, each with itself too, ``(batch,)``; None
            of two samples.
        freedom: their degrees of freedom ``d``.

    Returns:
        What to scale standard deviations with, and what is left of the noise.
    """
    bias, noise = _logarithm(freedom)
    usable = (var > 0) & (var < torch.inf)  # NaN is neither
    count = usable.sum(1, keepdim=True).to(var.dtype)
    several = count.clamp_min(1)
    logs = torch.where(usable, var, 1).log()
    rest = torch.where(usable, logs - logs.sum(1, keepdim=True) / several, 0)
    total = rest.square().sum(1, keepdim=True)
    degrees = count - 1
    if squares is None:
        shared = (1 - total / (degrees.clamp_min(1) * noise)).clamp_min(0)
    else:
        between = (squares.unsqueeze(1) - count) / (count * degrees).clamp_min(1)
        shared = ((between * freedom - 1) / (freedom - 1)).clamp(0, 1)
    single = noise * (1 - shared)
    explained = (degrees - 2) * single / torch.where(total > 0, total, 1)
    shrink = torch.where(total > 0, explained.clamp_max(1), 1.0)
    shrink = torch.where((degrees < _FEWEST - 1) | (shrink < _ALIKE), 0.0, shrink)
    of_average = noise * (shared + (1 - shared) / several)
    of_rest = single * (1 - 1 / several)
    own = ((of_average + (1 - shrink).square() * of_rest) / noise).clamp_max(1)
    # An average of logarithms is too small by the bias; a variance alone is right as it is.
    scale = torch.exp(-rest * shrink / 2 - (1 - own) * bias / 2)
    scale = torch.where(usable, scale, 1)

    def left() -> tuple[Tensor, Tensor]:
        # and the squared error of not knowing the weight better, 2/(p - 2) s² i² (Morris 1983)
        unknown = 2 / (degrees - 2).clamp_min(1) * (shrink * rest).square()
        error = (of_average + (1 - shrink) * of_rest + unknown) / noise
        return own.expand_as(var), error.expand_as(var)

    return Moderated(scale, left)


def normal_error(freedom: int) -> float:
    """The squared relative error of a normal output's deviation, ``ψ′(d/2)/4``, about ``1/(2d)``."""
    return _logarithm(freedom)[1] / 4


@cache
def _logarithm(freedom: int) -> tuple[float, float]:
    """Bias and variance of the logarithm of a variance's estimate, ``χ²_d/d``."""
    half = torch.tensor(freedom / 2, dtype=torch.float64, device="cpu")
    return float(torch.digamma(half) - half.log()), float(torch.polygamma(1, half))


def squared_overlaps(unit: Tensor) -> Tensor:
    """The sum of all ``ρ²`` of outputs whose samples are columns of length 1.

    ``‖Uᵀ U‖²`` is ``‖U Uᵀ‖²``, and the smaller matrix is formed.

    Args:
        unit: ``U``, ``(batch, samples, outputs)``.

    Returns:
        ``(batch,)``, each output's with itself included.
    """
    few = unit if unit.shape[1] < unit.shape[2] else unit.mT
    return (few @ few.mT).square().sum((1, 2))


def squared_correlations(covariance: Tensor) -> Tensor:
    """The sum of all ``ρ²`` in each of several matrices, ``(batch, outputs, outputs)``."""
    var = covariance.diagonal(dim1=1, dim2=2)
    rows = torch.where((var > 0) & var.isfinite(), var, torch.inf).reciprocal().unsqueeze(-1)
    squares = covariance.square().nan_to_num(0, 0, 0)  # an output that is no number is not counted
    return (rows.mT @ (squares @ rows)).flatten()
