"""The switch between narrow and wide noise, and what the wide formulas share."""

from __future__ import annotations

import torch
from torch import Tensor

from .moments import MomentFunction, Moments, piecewise
from .normal import upper_partial_moments

__all__ = ["bounded", "by_width", "positive_part"]

# Beyond this the density is flat on the function's scale and only m/σ matters; the exact value is
# immaterial, it keeps squares finite.
_LARGEST = {torch.float64: 1e30, torch.float32: 1e10}


def by_width(
    narrow: MomentFunction, wide: MomentFunction, limit: float, mean: Tensor, var: Tensor
) -> Moments:
    """``narrow`` for σ up to ``limit``, ``wide`` beyond."""
    return piecewise(
        var <= limit**2, narrow, wide, mean, var, safe=((0.0, 0.0), (0.0, 4 * limit**2))
    )


def bounded(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """The same ``m/σ`` with σ limited, for remainders that vanish against the rest there."""
    largest = _LARGEST[mean.dtype]
    limited = var.clamp_max(largest)
    return (mean * (limited.sqrt() / var.sqrt())).clamp(-largest, largest), limited


def positive_part(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``P(x > 0), E[x₊], E[x₊²]`` for means that are not positive."""
    std = var.sqrt()
    tail, first, second = upper_partial_moments((-mean / std).clamp_max(1e10))
    return tail, std * first, var * second
