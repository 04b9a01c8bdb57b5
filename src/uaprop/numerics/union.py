"""Which of very many Gaussian scores is the largest, by sampling.

For more scores than :mod:`.orthant` can give an integral each. Where it is rare that another than the
expected one wins, only such cases are drawn (Owen, Maximov & Chertkov 2019, ALOE): pick a rival ``j`` with
probability proportional to ``p_j = P(s_j > s_1)``, draw the scores given that it is ahead, and weigh the
draw by ``Σ p_j`` over the number of rivals that are ahead. So a probability of 1e-6 has as many digits as
one of 0.1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from .orthant import upper_tail

__all__ = ["HALF_STEP", "winners"]

HALF_STEP = 2.0**-31
"""Moves torch's Sobol points, multiples of 2⁻³⁰, away from zero and to the middle of their cells."""

_IN_FLIGHT = 2**22  # numbers held at a time
_NULL = 1e-14  # share of the variance below which there is none
_SAME = (
    1e-7  # scores closer than this share of the largest deviation are equal; roots are that exact
)


def winners(mean: Tensor, cov: Tensor, count: int, seed: int) -> Tensor:
    """The probability of each score to be the largest.

    Args:
        mean: (classes,), float64, the largest one first.
        cov: (classes, classes), positive semi-definite.
        count: draws, best a power of 2.
        seed: makes the answer reproducible.

    Returns:
        (classes,), with sum 1.
    """
    values, vectors = torch.linalg.eigh(cov)
    kept = values > _NULL * values[-1]
    root = (vectors[:, kept] * values[kept].sqrt()).flip(1)  # the best points for the largest ones
    var, gap = cov.diagonal(), mean[0] - mean
    apart = var + var[0] - 2 * cov[0]
    random = apart > _NULL * (var + var[0])
    std = torch.where(random, apart, 1).sqrt()
    ahead = torch.where(random, upper_tail(gap / std), 0)
    total = ahead.sum()
    rare = bool(total < 1)  # else draws from everywhere are the better ones
    directions = (root - root[:1]) / std.unsqueeze(1)
    same = _SAME * var.max().sqrt()
    engine = SobolEngine(root.shape[1] + 2, scramble=True, seed=seed)
    wins = torch.zeros_like(mean)
    for start in range(0, count, size := max(1, _IN_FLIGHT // len(mean))):
        points = engine.draw(min(size, count - start), dtype=mean.dtype) + HALF_STEP
        points = points.to(mean.device)
        z = torch.special.ndtri(points[:, 2:])
        if rare:
            rival = torch.searchsorted(ahead.cumsum(0), points[:, 0].contiguous() * total)
            rival = rival.clamp_max(len(mean) - 1)
            tail = (ahead[rival] * points[:, 1]).clamp_min(1e-300)
            along = directions[rival]
            z = z - along * (torch.special.ndtri(tail) + (z * along).sum(1)).unsqueeze(1)
        scores = mean + z @ root.T
        share = (scores >= scores.amax(1, keepdim=True) - same).to(mean.dtype)
        weight = 1 / share.sum(1, keepdim=True)
        if rare:
            rivals = ((scores > scores[:, :1]) & random).sum(1, keepdim=True)
            weight = weight * total / rivals.clamp_min(1)
        wins += (share * weight).sum(0) / count
    if rare:  # the draws say who else wins; the rest is the first's and its equals'
        first = (~random & (gap == 0)).to(mean.dtype)
        wins = wins + (1 - wins.sum()).clamp_min(0) * first / first.sum()
    return wins / wins.sum()
