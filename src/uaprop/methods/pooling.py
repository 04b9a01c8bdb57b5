"""Variances estimated from few draws, made steadier by their neighbours.

A variance estimated with ``d`` degrees of freedom has a relative error of ``√(2/d)``: 35% with sixteen. The
outputs of one network for one input have much in common, though: the share of their variance that
is *not* linear differs less from output to output than that. So the logarithms of the shares are drawn
towards their average, the more the less they differ beyond what chance explains (James & Stein 1961;
Efron & Morris 1975). With many draws, or outputs that have little in common, nothing is drawn anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics.moments import root

__all__ = ["pooled"]

_FEWEST = 4  # with fewer outputs their average says too little


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
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    chance = float(torch.polygamma(1, half))
    bias = float(torch.digamma(half) - half.log())
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
