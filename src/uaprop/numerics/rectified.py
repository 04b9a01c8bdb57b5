"""Functions with one kink at zero: ReLU, leaky ReLU, PReLU, the absolute value, one-sided clamps.

With slopes ``a`` on the left and ``b`` on the right, ``t = |m|/σ``, the slope ``n`` on the mean's own
side and the jump ``Δ`` to the other side's slope::

    E[f]   = f(m) + (b - a) σ I₁(t)
    E[f']  = n + Δ Q(t)
    Var[f] = v (n² + 2 n Δ Q(t) + Δ² (I₂(t) - I₁(t)²))

because ``f(x) = f(m) + n (x - m) + |Δ|·(what lies beyond the kink)`` and ``Cov(x, (−x)₊) = −v Q``.
For ``a = 0, b = 1`` this is the report's UAReLU with the sign of its variance corrected
(erratum 1); written this way nothing cancels, for any mean and any variance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .moments import Moments, folded, in_chunks, standard, working_precision
from .normal import upper_partial_moments

_CHUNK = 2**15

__all__ = ["absolute", "clamp_max", "clamp_min", "kinked", "leaky", "relu"]


def kinked(mean: Tensor, var: Tensor, left: float | Tensor, right: float | Tensor) -> Moments:
    """Slope ``left`` for negative ``x``, slope ``right`` for positive ``x``."""
    std, z = standard(mean, var)
    positive = mean > 0
    tail, first, second = upper_partial_moments(-folded(z, positive))
    # as tensors: torch.where would take two numbers for float32
    left = torch.as_tensor(left, dtype=mean.dtype, device=mean.device)
    right = torch.as_tensor(right, dtype=mean.dtype, device=mean.device)
    near = torch.where(positive, right, left)
    jump = torch.where(positive, left, right) - near
    return Moments(
        near * mean + (right - left) * std * first,
        near + jump * tail,
        var * (near * near + 2 * near * jump * tail + jump * jump * (second - first * first)),
    )


@working_precision
def relu(mean: Tensor, var: Tensor) -> Moments:
    """``max(x, 0)``; the report's equations (19) and (20) with erratum 1 corrected."""
    return in_chunks(lambda m, v: kinked(m, v, 0.0, 1.0), mean, var, size=_CHUNK)


@working_precision
def leaky(mean: Tensor, var: Tensor, negative_slope: float | Tensor) -> Moments:
    """``x`` for positive ``x``, ``negative_slope · x`` otherwise; the slope may be a tensor."""
    return kinked(mean, var, negative_slope, 1.0)


@working_precision
def absolute(mean: Tensor, var: Tensor) -> Moments:
    """``|x|``, the folded normal distribution."""
    _, z = standard(mean, var)
    # 1 - 2Q(t) as an error function: it keeps its digits where the mean is small
    return kinked(mean, var, -1.0, 1.0)._replace(gain=torch.erf(z * math.sqrt(0.5)))


@working_precision
def clamp_min(mean: Tensor, var: Tensor, bound: float | Tensor) -> Moments:
    """``max(x, bound)``, a ReLU moved to ``bound``."""
    std, z = standard(mean - bound, var)
    above = mean >= bound
    tail, first, second = upper_partial_moments(-folded(z, above))
    return Moments(
        torch.where(above, mean, bound).to(mean.dtype) + std * first,
        torch.where(above, 1 - tail, tail),
        var * (torch.where(above, 1 - 2 * tail, 0.0) + second - first * first),
    )


@working_precision
def clamp_max(mean: Tensor, var: Tensor, bound: float | Tensor) -> Moments:
    """``min(x, bound) = -max(-x, -bound)``."""
    flipped = clamp_min(-mean, var, -bound)
    return Moments(-flipped.mean, flipped.gain, flipped.var)
