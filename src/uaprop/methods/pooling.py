"""Variances estimated from few draws, made steadier by their neighbours.

A variance estimated with ``d`` degrees of freedom has a relative error of ``√(2/d)``: 35% with sixteen. The
outputs of one network for one input have much in common, though: the share of their variance that
is *not* linear differs less from output to output than that. So the shares are drawn towards their
average, the more the less they differ beyond what chance explains (James & Stein 1961; Efron & Morris 1975).
With many draws nothing is drawn anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics.moments import root

__all__ = ["pooled"]

_FEWEST = 4  # with fewer outputs their average says too little


def pooled(factors: Tensor, linear: Tensor, freedom: int) -> tuple[Tensor, Tensor]:
    """Steady the variances of a sampled covariance ``Fᵀ F``.

    With ratios ``q_k = var_k / linear_k``, their average ``c`` and the spread ``τ²`` of ``q/c`` beyond
    the ``2/d`` of chance, ``q_k`` becomes ``c + w (q_k - c)`` with ``w = τ²/(τ² + 2/d)``. The factors are
    scaled to fit, so correlations stay.

    Args:
        factors: ``F``, ``(stack, batch, outputs)``, with ``freedom`` degrees of freedom.
        linear: ``(batch, outputs)``, the variances that theirs are compared with.
        freedom: the degrees of freedom ``d``.

    Returns:
        The factors, and the relative standard error of their variances ``(batch, outputs)``.
    """
    chance = 2 / freedom
    var = factors.square().sum(0)
    usable = (linear > 0) & (var > 0)
    count = usable.sum(-1, keepdim=True)
    ratio = torch.where(usable, var / torch.where(usable, linear, 1), 0)
    average = ratio.sum(-1, keepdim=True) / count.clamp_min(1)
    relative = torch.where(usable, ratio / torch.where(average > 0, average, 1) - 1, 0)
    spread = relative.square().sum(-1, keepdim=True) / (count - 1).clamp_min(1)
    spread = (spread - chance).clamp_min(0)
    weight = torch.where(usable & (count >= _FEWEST), spread / (spread + chance), 1)
    target = linear * (average + weight * (ratio - average))
    scale = torch.where(weight < 1, root(target / torch.where(usable, var, 1)), 1)
    # what is left of chance: the part not pooled away, and the average's own, outputs being correlated
    unit = factors / torch.where(usable, root(var), torch.inf)
    alike = torch.einsum("rbk,sbk->brs", unit, unit).square().sum((-2, -1)).unsqueeze(-1)
    alike = alike / count.square().clamp_min(1)
    error = chance * (weight + (1 - weight).square() * alike)
    return factors * scale, error.sqrt()
