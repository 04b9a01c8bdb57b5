"""The logarithm of the normal distribution function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .moments import Moments
from .smooth import Jet
from .substitution import SINH, Function, moments_of

__all__ = ["log_ndtr"]


def _jet(x: Tensor) -> Jet:
    """With ``h = φ/Φ``: ``h' = -h(x + h)``."""
    value = torch.special.log_ndtr(x)
    h = torch.exp(-0.5 * x * x - value - 0.5 * math.log(2 * math.pi))
    second = -h * (x + h)
    third = -second * (x + h) - h * (1 + second)
    return Jet(value, h, second, third, -third * (x + 2 * h) - 2 * second * (1 + second))


_LOG_NDTR = Function(torch.special.log_ndtr, _jet, SINH, torch.ones_like)


def log_ndtr(mean: Tensor, var: Tensor) -> Moments:
    """``log Φ(x)``, a parabola on the left and zero on the right."""
    return moments_of(_LOG_NDTR, mean, var)
