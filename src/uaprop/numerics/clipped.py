"""Two-sided clamps: ``clamp``, ``hardtanh``, ``relu6``, ``hardsigmoid``.

By symmetry about the window's centre the mean may be taken to lie in its lower half, ``δ`` below the
centre. Three regions, because each of the three formulas cancels in the other two:

* the window is wider than 2σ and contains the mean: what is lost in both tails is subtracted;
* the window is wider than 2σ and the mean lies outside: what enters beyond the near edge;
* the window is narrower: ``E[h] = ∫₀ʷ Q``, ``E[h²] = ∫₀ʷ 2τ Q`` over the window by
  Gauss-Legendre quadrature, all terms positive.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .kernel import Kernel
from .moments import Moments, folded, piecewise, standard, working_precision
from .normal import pdf, upper_partial_moments
from .quadrature import legendre, tensors

__all__ = ["clamp", "hardsigmoid"]

_RULE = legendre(20)
_SQRT_HALF = math.sqrt(0.5)
_SAFE = (0.0, 1e10), (0.0, 0.0)


@working_precision
def clamp(mean: Tensor, var: Tensor, low: float | Tensor, high: float | Tensor) -> Moments:
    """``min(max(x, low), high)``; bounds are numbers or tensors that broadcast to ``mean``."""
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        low = min(low, high)  # torch lets the upper bound win
        return piecewise(
            var > ((high - low) / 2) ** 2,
            functools.partial(_wide_noise, low=low, high=high),
            lambda mean, var: _NARROW(mean, var, low, high),
            mean,
            var,
            safe=_SAFE,
            whole=True,
        )
    lower = torch.as_tensor(low, dtype=mean.dtype, device=mean.device)
    upper = torch.as_tensor(high, dtype=mean.dtype, device=mean.device)
    lower = torch.minimum(lower, upper)
    mean, var, lower, upper = torch.broadcast_tensors(mean, var, lower, upper)
    noisy = var > ((upper - lower) / 2) ** 2
    bounds = mean, var, lower, upper
    return piecewise(noisy, _wide_noise, _NARROW, *bounds, safe=_SAFE, whole=True)


def _narrow_noise(mean: Tensor, var: Tensor, low: float | Tensor, high: float | Tensor) -> Moments:
    low, high = (torch.as_tensor(x, dtype=mean.dtype, device=mean.device) for x in (low, high))
    std, _ = standard(mean, var)
    right = mean > low / 2 + high / 2
    outside = torch.where(right, mean - high, low - mean)  # distance beyond the nearer edge
    inside = outside <= 0
    _, near = standard(outside, var)
    folded_near = -folded(near, ~inside)
    _, far = standard(torch.where(right, mean - low, high - mean), var)
    q_near, i_near, ii_near = upper_partial_moments(folded_near)
    far = far.abs()  # negative in a window without width, without variance
    q_far, i_far, ii_far = upper_partial_moments(far)
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


_NARROW = Kernel(_narrow_noise)


def _wide_noise(mean: Tensor, var: Tensor, low: float | Tensor, high: float | Tensor) -> Moments:
    low, high = (torch.as_tensor(x, dtype=mean.dtype, device=mean.device) for x in (low, high))
    width, std = high - low, var.sqrt()
    offset = mean - low / 2 - high / 2
    right = offset > 0
    below = -folded(offset, right)
    nodes, weights = tensors(_RULE, mean)
    span = (width / std).unsqueeze(-1)
    points = ((below - width / 2) / std).clamp(-1e10, 1e10).unsqueeze(-1) + nodes * span
    positive = points >= 0
    tails = torch.where(
        positive,
        upper_partial_moments(torch.where(positive, points, 0), 1)[0],
        0.5 * torch.erfc(torch.where(positive, 0, points) * _SQRT_HALF),
    )
    first, second = tails @ weights, tails @ (2 * nodes * weights)
    entered = width * first
    edge_mean = torch.where(right, high - entered, low + entered)
    # Near the centre the mean is odd in the offset: centre + offset · (average gain on the way), the gain at
    # an offset d being ½[erf((w/2-d)/σ√2) + erf((w/2+d)/σ√2)].
    inside = below <= width / 2
    way = nodes * torch.where(inside, below, 0).unsqueeze(-1)
    half, scale = (width / 2).unsqueeze(-1), _SQRT_HALF / std.unsqueeze(-1)
    slope = 0.5 * (torch.erf((half - way) * scale) + torch.erf((half + way) * scale)) @ weights
    centre_mean = low / 2 + high / 2 + offset * slope
    return Moments(
        torch.where(inside, centre_mean, edge_mean),
        pdf(points) @ weights * width / std,
        width * width * (second - first * first),
    )


@working_precision
def hardsigmoid(mean: Tensor, var: Tensor) -> Moments:
    """``clamp(x/6 + 1/2, 0, 1)``."""
    result = clamp(mean / 6 + 0.5, var / 36, 0.0, 1.0)
    plain = torch.nn.functional.hardsigmoid(mean)
    return Moments(torch.where(var > 0, result.mean, plain), result.gain / 6, result.var)
