"""Tangent and the inverse trigonometric functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .moments import Moments
from .smooth import Jet
from .substitution import SINH, Function, Variable, moments_of

__all__ = ["acos", "asin", "atan", "distance_to_pole", "tan"]

_SINE = Variable(torch.asin, torch.sin, torch.cos)
_ITSELF = Variable(lambda x: x, lambda s: s, torch.ones_like)
_TO_POLE = 5.5  # standard deviations that a tangent is averaged over


def _atan_jet(x: Tensor) -> Jet:
    slope = 1 / (1 + x * x)
    ratio = x * slope  # powers of x alone overflow
    return Jet(
        torch.atan(x),
        slope,
        -2 * ratio * slope,
        slope * (6 * ratio * ratio - 2 * slope * slope),
        24 * ratio * slope * (slope * slope - ratio * ratio),
    )


_ATAN = Function(torch.atan, _atan_jet, SINH, lambda m: 1 + m.abs())


def atan(mean: Tensor, var: Tensor) -> Moments:
    """``atan x``; smooth in ``s`` with ``x = sinh s``."""
    return moments_of(_ATAN, mean, var)


def _asin_jet(x: Tensor) -> Jet:
    slope = 1 / ((1 - x) * (1 + x)).sqrt()
    cube = slope**3
    return Jet(
        torch.asin(x),
        slope,
        x * cube,
        (1 + 2 * x * x) * cube * slope**2,
        (9 * x + 6 * x**3) * cube * slope**4,
    )


def _ends(mean: Tensor) -> tuple[Tensor, Tensor]:
    one = torch.ones_like(mean)
    return -one, one


def _acos_jet(x: Tensor) -> Jet:
    jet = _asin_jet(x)
    return Jet(torch.acos(x), *(-t for t in jet[1:]))


_ASIN = Function(torch.asin, _asin_jet, _SINE, lambda m: (1 - m.abs()).clamp_min(0), _ends)
_ACOS = Function(torch.acos, _acos_jet, _SINE, lambda m: (1 - m.abs()).clamp_min(0), _ends)


def asin(mean: Tensor, var: Tensor) -> Moments:
    """``asin x`` of the part of the noise between -1 and 1; smooth in ``s`` with ``x = sin s``."""
    return moments_of(_ASIN, mean, var)


def acos(mean: Tensor, var: Tensor) -> Moments:
    """``acos x = π/2 - asin x``."""
    return moments_of(_ACOS, mean, var)


def distance_to_pole(mean: Tensor) -> Tensor:
    """How far the nearest pole of the tangent is, ``π/2 + kπ``."""
    return math.pi / 2 - (mean - math.pi * torch.round(mean / math.pi)).abs()


def _tan_jet(x: Tensor) -> Jet:
    t = torch.tan(x)
    slope = 1 + t * t
    return Jet(t, slope, 2 * t * slope, (2 + 6 * t * t) * slope, (16 * t + 24 * t**3) * slope)


_TAN = Function(torch.tan, _tan_jet, _ITSELF, distance_to_pole, reach=_TO_POLE)


def tan(mean: Tensor, var: Tensor) -> Moments:
    """``tan x`` of noise that stays six standard deviations away from the poles, cut off before them."""
    return moments_of(_TAN, mean, var)
