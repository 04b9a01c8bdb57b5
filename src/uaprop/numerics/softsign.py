"""Softsign, ``x/(1 + |x|)``."""

from __future__ import annotations

import torch
from torch import Tensor

from .moments import Moments
from .smooth import Jet
from .substitution import SINH, Function, moments_of

__all__ = ["softsign"]


def _value(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


def _jet(x: Tensor) -> Jet:
    """Of the side that the mean is on: the second derivative jumps at zero."""
    sign = torch.where(x < 0, -1.0, 1.0).to(x.dtype)
    size = sign * x
    r = 1 / (1 + size)
    slope = r * r
    second, fourth = -2 * sign * slope * r, -24 * sign * slope * slope * r
    return Jet(x * r, slope, second, 6 * slope * slope, fourth)


def _scale(mean: Tensor) -> Tensor:
    """Noise that does not reach zero."""
    return (100 * mean.abs()).clamp_max(1 + mean.abs())


_SOFTSIGN = Function(_value, _jet, SINH, _scale)


def softsign(mean: Tensor, var: Tensor) -> Moments:
    """By quadrature on either side of zero, or by the derivatives far from it."""
    return moments_of(_SOFTSIGN, mean, var)
