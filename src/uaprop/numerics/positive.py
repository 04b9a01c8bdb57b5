"""Powers and logarithms of what is positive: moments of the gamma distribution of the same mean and variance.

A Gaussian has some mass below zero, where a root has no value, and its reciprocal has no mean at all.
What comes to these functions in a network (a mean of squares, a norm, a sum of exponentials) is positive.
A mean of squares is nearly gamma distributed (Satterthwaite 1946), exactly so for equal variances around
zero. Its moments are gamma functions, whose logarithms are, to second order in ``ρ = v/m²``::

    log E[xᵖ]                 = p log m + ½ p(p-1) ρ (1 - (2p-1)ρ/6)        E[log x]   = log m - ρ/2 - ρ²/12
    log(1 + Var[xᵖ]/E[xᵖ]²)   = p² ρ (1 + (½-p)ρ)                           Var[log x] = ρ + ρ²/2
    gain = Cov(xᵖ, x)/v       = p E[xᵖ]/m, exactly                          gain       = 1/m

For the square root both second-order terms vanish. A log-normal ``x`` has the same gain towards any
``y`` that is jointly Gaussian with ``log x``. (The derivative of ``E[xᵖ]`` at fixed variance, which is
the gain of a Gaussian, is too large for means of few squares: docs/theory/normalisation.md.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from .moments import Moments, root, working_precision

__all__ = ["log", "log1p", "negligible_below_zero", "power", "signed_power"]

_NEEDED = 3.0  # deviations from the mean down to zero


def negligible_below_zero(mean: Tensor, var: Tensor) -> bool:
    """Whether every mean is at least three deviations above zero; what has no variance passes."""
    return bool(((var == 0) | ((mean > 0) & (mean >= _NEEDED * var.sqrt()))).all())


def _shape(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, not below one deviation; its size as a divisor; the ratio ``v/m²``, at most 1."""
    least = root(var)
    mean = torch.where((var > 0) & (mean < least), least, mean)
    divisor = torch.where(mean == 0, 1, mean)
    return mean, divisor, var / divisor / divisor  # the square of a small mean would underflow


def _bent(ratio: Tensor, slope: float) -> Tensor:
    """``ρ(1 + slope·ρ)``, to second order, and never negative."""
    return ratio * (1 + slope * ratio) if slope >= 0 else ratio / (1 - slope * ratio)


_ROOTS = {0.5: torch.sqrt, -0.5: torch.rsqrt, -1.0: torch.reciprocal}


@working_precision
def power(mean: Tensor, var: Tensor, exponent: float) -> Moments:
    """``xᵖ`` of a positive ``x``, for any ``p`` but zero."""
    p = exponent
    mean, divisor, ratio = _shape(mean, var)
    function = _ROOTS.get(float(p))
    value = mean**p if function is None else function(mean)
    value = value * torch.exp(0.5 * p * (p - 1) * _bent(ratio, -(2 * p - 1) / 6))
    finite = torch.where(mean == 0, 0, value)  # where x is certainly zero, xᵖ may be infinite
    spread = torch.expm1(p * p * _bent(ratio, 0.5 - p))
    return Moments(value, p * finite / divisor, finite.square() * spread)


@working_precision
def signed_power(mean: Tensor, var: Tensor, exponent: int) -> Moments:
    """``xⁿ`` of what is far from zero on either side, for a negative integer ``n``: ``(±1)ⁿ |x|ⁿ``."""
    sign = torch.where(mean < 0, -1.0, 1.0).to(mean.dtype)
    result = power(sign * mean, var, exponent)
    if exponent % 2 == 0:
        return result._replace(gain=sign * result.gain)
    return result._replace(mean=sign * result.mean)


@working_precision
def log(mean: Tensor, var: Tensor, scale: float = 1.0) -> Moments:
    """``scale · log x`` of a positive ``x``."""
    mean, divisor, ratio = _shape(mean, var)
    value = torch.log(mean) - 0.5 * _bent(ratio, 1 / 6)
    return Moments(scale * value, scale / divisor, scale * scale * _bent(ratio, 0.5))


@working_precision
def log1p(mean: Tensor, var: Tensor) -> Moments:
    """``log(1 + x)`` for ``x > -1``, with the digits of a small ``x``."""
    shifted = log(1 + mean, var)
    small = mean.abs() < 0.5
    at = torch.where(small, mean, 0)
    curved = 0.5 * _bent(_shape(1 + at, torch.where(small, var, 0))[2], 1 / 6)
    return shifted._replace(mean=torch.where(small, torch.log1p(at) - curved, shifted.mean))
