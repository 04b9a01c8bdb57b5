"""Whether a few samples contradict what a method says of them, and how strongly.

With ``n`` samples ``y_i`` of ``K`` outputs and a method's means ``m`` and standard deviations ``s``,

    R = 1/K Σ_k v_k/s_k²,   v_k = 1/(n-1) Σ_i (y_ik - ȳ_k)²
    M = n/K Σ_k (ȳ_k - m_k)²/(s_k² R)

If the method is right, ``R`` is 1 on average. Of normal outputs with correlations ``ρ_kl`` its relative
variance is ``2/(n-1) Σ w_k w_l ρ_kl²``, ``w`` being the parts of the sum. The samples tell ``ρ²``, without
the part that sampling noise adds to it, ``(1-ρ²)/(n-1)``. Of other outputs it can be larger: the variance of
the ``n`` samples' own parts of ``R`` is another estimate, and the larger of the two is taken. A chi-squared
variable over its degrees of freedom ``D`` of the same relative variance ``2/D`` is what ``R`` is compared
with (Satterthwaite 1946). That is exact for one normal output, and for outputs that are all the same or all
independent. ``M`` has the distribution F of ``D/(n-1)`` and ``D`` degrees of freedom in the same cases, and
is smaller where samples have been centred.

Both are given as the normal deviate that is exceeded with the same probability: ``R`` by the cube root of
Wilson & Hilferty (1931), ``M`` by that of Paulson (1942).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Discrepancy", "discrepancy", "threshold"]

_LEVEL = 0.01  # the probability of a false alarm
_TAILS = 3  # standard deviations too large or too small, means too far away
_ROUNDINGS = 64  # of the largest output of an item, that are no variance


class Discrepancy(NamedTuple):
    """What samples say of a method's results, ``(items,)`` each.

    Attributes:
        ratio: the method's standard deviations over the samples', ``1/√R``; 1 where there is nothing to
            compare.
        std_score: the normal deviate of ``R``, positive where the method's are too small.
        shift: the distance of the means in standard deviations of the samples, ``√(M/n)``.
        mean_score: the normal deviate of ``M``.
        freedom: ``D``.
    """

    ratio: Tensor
    std_score: Tensor
    shift: Tensor
    mean_score: Tensor
    freedom: Tensor

    def found(self, score: float, ratio: float, shift: float) -> Tensor:
        """Where the samples contradict the method.

        Args:
            score: a normal deviate beyond which it is no chance (:func:`threshold`).
            ratio: by what standard deviations may differ, relatively.
            shift: by how many of them the means may.

        Returns:
            ``(items,)``.
        """
        std = (self.std_score.abs() > score) & (self.ratio.log().abs() > math.log1p(ratio))
        return std | ((self.mean_score > score) & (self.shift > shift))


def threshold(tests: int) -> float:
    """The deviate that chance exceeds in one of so many tests in 1 of 100 cases, or less (Bonferroni)."""
    tail = torch.tensor(_LEVEL / _TAILS / max(tests, 1), dtype=torch.float64, device="cpu")
    return -float(torch.special.ndtri(tail))


def discrepancy(samples: Tensor, mean: Tensor, var: Tensor, eps: float) -> Discrepancy:
    """Compare the samples of each item's outputs with what a method says of them.

    Outputs that are not finite are left out, and those that no sample has moved: what happens less than once
    in so many samples cannot be told from what never happens.

    Args:
        samples: ``(n, items, outputs)``, in float64.
        mean: ``(items, outputs)``, the method's.
        var: of the same shape, its variances.
        eps: the spacing of the dtype that the samples were computed in.

    Returns:
        The discrepancy of each item.
    """
    count, freedom = len(samples), len(samples) - 1
    usable = samples.isfinite().all(0) & mean.isfinite() & var.isfinite()
    samples, mean, var = (torch.where(usable, t, 0) for t in (samples, mean, var))
    center = samples.mean(0)
    offsets = samples - center
    squares = offsets.square()
    sampled = squares.sum(0) / freedom
    rounding = _ROUNDINGS * eps * samples.abs().amax(0).amax(-1, keepdim=True)
    least = rounding.square().clamp_min(torch.finfo(samples.dtype).tiny)
    usable = usable & ((sampled > least) | (var > least))
    var = torch.where(usable, torch.maximum(var, least), torch.inf)  # parts of zero
    outputs = usable.sum(-1).clamp_min(1)
    parts = (squares / var).sum(-1) / outputs  # of each sample
    ratio = parts.sum(0) / freedom
    known = ratio > 0
    whole = torch.where(known, ratio, 1)
    weights = sampled / var / (whole * outputs).unsqueeze(-1)
    by_samples = 2 * ratio.square() * freedom**3 / (count * (parts - parts.mean(0)).square().sum(0))
    alike = _alike(offsets, weights)
    missing = (1 - ratio).clamp_min(0)
    alike = (missing + (1 - missing) * alike.sqrt()).square()
    degrees = torch.minimum(freedom / alike, by_samples).nan_to_num(1).clamp_min(1)
    shift = ((center - mean).square() / var).sum(-1) / outputs / whole
    return Discrepancy(
        torch.where(known, whole.rsqrt(), 1),
        torch.where(known, _chi_squared_score(whole, degrees), 0),
        torch.where(known, shift.sqrt(), 0),
        torch.where(known, _f_score(count * shift, degrees / freedom, degrees), 0),
        degrees,
    )


def _alike(offsets: Tensor, weights: Tensor) -> Tensor:
    """``Σ w_k w_l ρ_kl²`` without what sampling noise adds to ``ρ²``, ``(items,)``."""
    freedom = len(offsets) - 1
    size = offsets.square().sum(0).sqrt()
    unit = offsets / torch.where(size > 0, size, torch.inf)
    gram = torch.einsum("rbk,sbk,bk->brs", unit, unit, weights)
    own = weights.square().sum(-1)
    pairs = 1 - own
    between = (gram.square().sum((1, 2)) - own) / torch.where(pairs > 0, pairs, 1)
    shared = ((between * freedom - 1) / (freedom - 1)).clamp(0, 1)
    return own + pairs.clamp_min(0) * shared


def _chi_squared_score(ratio: Tensor, freedom: Tensor) -> Tensor:
    """The normal deviate of a chi-squared variable over its degrees of freedom."""
    spread = 2 / (9 * freedom)
    return (ratio.pow(1 / 3) - (1 - spread)) / spread.sqrt()


def _f_score(ratio: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """The normal deviate of a variable with the distribution F."""
    a, b = 2 / (9 * above), 2 / (9 * below)
    root = ratio.pow(1 / 3)
    return ((1 - b) * root - (1 - a)) / (b * root.square() + a).sqrt()
