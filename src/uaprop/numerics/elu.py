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
from .moments import Moments, piecewise, standard, working_precision
from .normal import pdf, upper_partial_moments
from .quadrature import legendre
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
    first = second = gain = torch.zeros_like(mean)
    for node, weight in rule:
        u = -reach + node * (kink + reach)
        density = weight * (kink + reach) * pdf(u)
        x = (mean + std * u).clamp_max(0)
        difference = torch.where(
            at_left, grown * torch.expm1(std * u), a * torch.expm1(x) - value
        )
        first = first + density * difference
        second = second + density * difference * difference
        gain = gain + density * a * torch.exp(x)
        u = kink + node * (reach - kink)
        density = weight * (reach - kink) * pdf(u)
        difference = torch.where(at_left, b * (mean + std * u).clamp_min(0) - value, b * std * u)
        first = first + density * difference
        second = second + density * difference * difference
        gain = gain + density * b
    small = var < _SMALL[mean.dtype]
    result = torch.where(small, _small_mean(mean, var, a, b), value + first)
    return Moments(result, gain, second - first * first)


def _small_mean(mean: Tensor, var: Tensor, a: float, b: float) -> Tensor:
    """The mean near the kink for small σ, from ``e^{-y} - 1 = -y + y²/2 - y³/6 + …``, ``y = (-x)₊``.

    Where the slopes agree the mean is a second-order quantity, which differences of ``f`` lose.
    """
    std, z = standard(mean, var)
    _, _, i2, i3, i4 = upper_partial_moments(z.abs(), 4)
    left = mean < 0
    m2, v2 = mean * mean, var * var
    # E[yᵏ]: beyond the kink for m ≥ 0; for m < 0 the whole moment less what lies beyond it
    y2 = torch.where(left, m2 + var - var * i2, var * i2)
    y3 = torch.where(left, -mean * (m2 + 3 * var) + var * std * i3, var * std * i3)
    y4 = torch.where(left, m2 * (m2 + 6 * var) + 3 * v2 - v2 * i4, v2 * i4)
    return kinked(mean, var, a, b).mean + a * (y2 / 2 - y3 / 6 + y4 / 24)


def _wide(mean: Tensor, var: Tensor, a: float, b: float) -> Moments:
    std = var.sqrt()
    tail, i1, i2 = upper_partial_moments((mean.abs() / std).clamp_max(1e10))
    left = mean <= 0
    above = torch.where(left, tail, 1 - tail)  # P(x > 0)
    below = torch.where(left, 1 - tail, tail)
    m, v = bounded(mean, var)
    once, twice = half_moment(1, m, v), half_moment(2, m, v)
    positive = mean.clamp_min(0) + std * i1  # E[x₊]
    shifted = a * once + b * positive + a * above
    square = a * a * twice + b * b * var * i2 + a * (2 * b * positive + a * above)
    rest = a * (once - below)
    var_right = (
        b * b * var * (1 - 2 * tail + i2 - i1 * i1)
        - 2 * b * positive * rest
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
        narrow, lambda m, v: _wide(m, v, a, b), 0.5, mean * scale, var * scale * scale
    )
    # The derivative is with respect to x, not scale·x.
    return Moments(result.mean, result.gain * scale, result.var)
