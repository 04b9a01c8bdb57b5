"""Two-sided clamps: ``clamp``, ``hardtanh``, ``relu6``, ``hardsigmoid``.

By symmetry about the window's centre the mean may be taken to lie in its lower half, ``δ`` below the
centre. Three regions, because each of the three formulas cancels in the other two:

* the window is wider than σ and contains the mean: what is lost in both tails is subtracted;
* the window is wider than σ and the mean lies outside: what enters beyond the near edge;
* the window is narrower than σ: ``E[h] = ∫₀ʷ Q``, ``E[h²] = ∫₀ʷ 2τ Q`` over the window by
  Gauss-Legendre quadrature, all terms positive.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .moments import Moments, standard, working_precision
from .normal import pdf, upper_partial_moments
from .quadrature import legendre

__all__ = ["clamp", "hardsigmoid"]

_RULE = legendre(14)
_SQRT_HALF = math.sqrt(0.5)


@working_precision
def clamp(mean: Tensor, var: Tensor, low: float | Tensor, high: float | Tensor) -> Moments:
    """``min(max(x, low), high)``; bounds are numbers or tensors that broadcast to ``mean``."""
    low = torch.as_tensor(low, dtype=mean.dtype, device=mean.device)
    high = torch.as_tensor(high, dtype=mean.dtype, device=mean.device)
    low = torch.minimum(low, high)  # torch lets the upper bound win
    width = high - low
    offset = mean - low / 2 - high / 2
    std, _ = standard(mean, var)
    wide = _wide_noise(mean, var, low, high, offset, width, std)
    narrow = _narrow_noise(mean, var, low, high, offset, width, std)
    noisy = std > width
    return Moments(*(torch.where(noisy, a, b) for a, b in zip(wide, narrow, strict=True)))


def _narrow_noise(
    mean: Tensor, var: Tensor, low: Tensor, high: Tensor, offset: Tensor, width: Tensor, std: Tensor
) -> Moments:
    right = offset > 0
    outside = torch.where(right, mean - high, low - mean)  # distance beyond the nearer edge
    inside = outside <= 0
    _, near = standard(outside, var)
    _, far = standard(torch.where(right, mean - low, high - mean), var)
    q_near, i_near, ii_near = upper_partial_moments(near.abs())
    q_far, i_far, ii_far = upper_partial_moments(far.abs())
    spread = i_near - i_far
    shift = torch.where(right, -std, std) * spread
    centre_mean = mean + shift
    edge_mean = torch.where(right, high, low) + shift
    var_in = 1 - 2 * q_near - 2 * q_far + ii_near + ii_far - spread * spread
    # E[h²] = v (I₂(near) - I₂(far) - 2 (w/σ) I₁(far)), with w/σ = far - near.
    span = (far - near).clamp_max(1e9)
    var_out = ii_near - ii_far - 2 * span * i_far - spread * spread
    return Moments(
        torch.where(inside, centre_mean, edge_mean),
        torch.where(inside, 1 - q_near - q_far, q_near - q_far),
        var * torch.where(inside, var_in, var_out),
    )


def _wide_noise(
    mean: Tensor, var: Tensor, low: Tensor, high: Tensor, offset: Tensor, width: Tensor, std: Tensor
) -> Moments:
    below = offset.abs()
    noisy = std > width
    scale = torch.where(noisy, std, 1)
    width = torch.where(noisy, width, 1)
    edge = ((below - width / 2) / scale).clamp(-1e10, 1e10)
    reach = below.minimum(width / 2)
    first = second = density = slope = torch.zeros_like(mean)
    for node, weight in _RULE:
        point = edge + node * width / scale
        tail = torch.where(
            point >= 0,
            upper_partial_moments(point.clamp_min(0), 1)[0],
            0.5 * torch.erfc(point.clamp_max(0) * _SQRT_HALF),
        )
        first = first + weight * tail
        second = second + 2 * weight * node * tail
        density = density + weight * pdf(point)
        # ½[erf(p) + erf(q)] at the offset node·δ: the gain there, whose average is the mean's slope
        p = (width / 2 - node * reach) * _SQRT_HALF / scale
        q = (width / 2 + node * reach) * _SQRT_HALF / scale
        slope = slope + weight * 0.5 * (torch.erf(p) + torch.erf(q))
    entered = width * first
    inside = below <= width / 2
    right = offset > 0
    edge_mean = torch.where(right, high - entered, low + entered)
    # near the centre the mean is odd in the offset: centre + offset · (average gain on the way)
    centre_mean = low / 2 + high / 2 + offset * slope
    return Moments(
        torch.where(inside, centre_mean, edge_mean),
        density * width / scale,
        width * width * (second - first * first),
    )


@working_precision
def hardsigmoid(mean: Tensor, var: Tensor) -> Moments:
    """``clamp(x/6 + 1/2, 0, 1)``."""
    result = clamp(mean / 6 + 0.5, var / 36, 0.0, 1.0)
    plain = torch.nn.functional.hardsigmoid(mean)
    return Moments(torch.where(var > 0, result.mean, plain), result.gain / 6, result.var)
