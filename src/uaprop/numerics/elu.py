"""ELU, SELU and CELU: ``b x`` on the right, ``a (e^x - 1)`` on the left, after scaling ``x``.

* The kink is out of the noise's reach: linear on the right, log-normal on the left.
* σ > ½: closed forms with ``E[e^{kx}; x<0]``. For ``m ≤ 0`` they are for ``f + a``, which is small
  there and positive; for ``m > 0`` for ``b x₊`` plus the rest.
* Otherwise Gauss-Legendre quadrature on each side of the kink, of the difference ``f(x) - f(m)`` written
  with ``expm1`` so that a small variance keeps its digits.
* σ < 1e-10 within reach of the kink: the two slopes are all that is left of the function.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .exponential_sums import half_moment
from .moments import Moments, folded, piecewise, scaled, standard, working_precision
from .normal import pdf, upper_partial_moments
from .quadrature import legendre, tensors
from .rectified import kinked
from .widths import bounded, by_width

__all__ = ["elu"]

# dtype: (how many deviations count, the rule for each side of the kink)
_PANELS = {torch.float64: (9.0, legendre(44)), torch.float32: (6.5, legendre(28))}
_SMALL = {torch.float64: 1e-8, torch.float32: 1e-4}


def _far_from_kink(mean: Tensor, var: Tensor, a: float, b: float) -> Moments:
    left = mean < 0
    m = torch.where(left, mean, 0)
    v = torch.where(left, var, 0)
    slope = a * torch.exp(m + 0.5 * v)
    return Moments(
        torch.where(left, a * torch.expm1(m + 0.5 * v), b * mean),
        torch.where(left, slope, b),
        torch.where(left, slope * slope * torch.expm1(v), b * b * var),
    )


def _across_kink(mean: Tensor, var: Tensor, a: float, b: float) -> Moments:
    reach, rule = _PANELS[mean.dtype]
    std = var.sqrt()
    kink = (-mean / std).clamp(-reach, reach)
    at_left = mean <= 0
    grown = a * torch.exp(mean.clamp_max(0))
    value = torch.where(at_left, a * torch.expm1(mean.clamp_max(0)), b * mean)
    nodes, weights = tensors(rule, mean)
    m, sigma, split = mean.unsqueeze(-1), std.unsqueeze(-1), kink.unsqueeze(-1)
    here, start, lift = at_left.unsqueeze(-1), value.unsqueeze(-1), grown.unsqueeze(-1)
    left_u = -reach + nodes * (split + reach)
    left_mass = weights * (split + reach) * pdf(left_u)
    x = (m + sigma * left_u).clamp_max(0)
    left = torch.where(here, lift * torch.expm1(sigma * left_u), a * torch.expm1(x) - start)
    right_u = split + nodes * (reach - split)
    right_mass = weights * (reach - split) * pdf(right_u)
    right = torch.where(here, b * (m + sigma * right_u).clamp_min(0) - start, b * sigma * right_u)
    first = (left_mass * left + right_mass * right).sum(-1)
    second = (left_mass * left.square() + right_mass * right.square()).sum(-1)
    gain = (left_mass * a * torch.exp(x) + right_mass * b).sum(-1)
    small = var < _SMALL[mean.dtype]
    result = torch.where(small, _small_mean(mean, var, a, b), value + first)
    return Moments(result, gain, second - first * first)


def _small_mean(mean: Tensor, var: Tensor, a: float, b: float) -> Tensor:
    """The mean near the kink for small σ, from ``e^{-y} - 1 = -y + y²/2 - y³/6 + …``, ``y = (-x)₊``.

    Where the slopes agree the mean is a second-order quantity, which differences of ``f`` lose.

    Returns:
        The mean, of the input's shape.
    """
    std, z = standard(mean, var)
    left = mean <= 0
    _, _, i2, i3, i4 = upper_partial_moments(-folded(z, ~left), 4)
    m2, v2 = mean * mean, var * var
    # E[yᵏ]: beyond the kink for m ≥ 0; for m < 0 the whole moment less what lies beyond it
    y2 = torch.where(left, m2 + var - var * i2, var * i2)
    y3 = torch.where(left, -mean * (m2 + 3 * var) + var * std * i3, var * std * i3)
    y4 = torch.where(left, m2 * (m2 + 6 * var) + 3 * v2 - v2 * i4, v2 * i4)
    return kinked(mean, var, a, b).mean + a * (y2 / 2 - y3 / 6 + y4 / 24)


def _wide(mean: Tensor, var: Tensor, a: float, b: float) -> Moments:
    std = var.sqrt()
    left = mean <= 0
    tail, i1, i2 = upper_partial_moments((-folded(mean, ~left) / std).clamp_max(1e10))
    above = torch.where(left, tail, 1 - tail)  # P(x > 0)
    below = torch.where(left, 1 - tail, tail)
    m, v = bounded(mean, var)
    once, twice = half_moment(1, m, v), half_moment(2, m, v)
    positive = mean.clamp_min(0) + std * i1  # E[x₊]
    shifted = a * once + b * positive + a * above
    square = a * a * twice + b * b * (var * i2) + a * (2 * b * positive + a * above)
    rest = a * (once - below)
    var_right = (
        b * b * var * (1 - 2 * tail + i2 - i1 * i1)
        - 2 * (b * (positive * rest))
        + a * a * (twice - 2 * once + below)
        - rest * rest
    )
    return Moments(
        torch.where(left, shifted - a, b * positive + rest),
        a * once + b * above,
        torch.where(left, square - shifted * shifted, var_right),
    )


@working_precision
def elu(mean: Tensor, var: Tensor, a: float, b: float, scale: float = 1.0) -> Moments:
    """``b·x`` for positive ``x``, ``a·(e^{scale·x} - 1)`` otherwise.

    ``torch.elu(x, α)`` is ``(α, 1, 1)``, ``selu`` is ``(λα, λ, 1)``, ``celu(x, α)`` is ``(α, 1, 1/α)``.

    Returns:
        The moments, of the mean's shape.
    """
    b = b / scale

    def near(m: Tensor, v: Tensor) -> Moments:
        return piecewise(
            v < 1e-20,
            lambda p, q: kinked(p, q, a, b),
            lambda p, q: _across_kink(p, q, a, b),
            m,
            v,
            safe=((0.0, 0.0), (0.0, 0.1)),
        )

    def narrow(m: Tensor, v: Tensor) -> Moments:
        return piecewise(
            m * m > 100 * v,
            lambda p, q: _far_from_kink(p, q, a, b),
            near,
            m,
            v,
            safe=((1.0, 0.0), (0.0, 0.1)),
        )

    result = by_width(
        narrow, lambda m, v: _wide(m, v, a, b), 0.5, scaled(mean, scale), scaled(var, scale * scale)
    )
    # The derivative is with respect to x, not scale·x.
    return Moments(result.mean, result.gain * scale, result.var)
