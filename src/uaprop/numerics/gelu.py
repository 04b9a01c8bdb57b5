"""GELU, ``x Φ(x)``, and its tanh form; both satisfy ``f(x) = x + f(-x)``.

Noise up to the function's own scale is integrated by Gauss-Hermite quadrature, wider noise over the
few units around zero where GELU differs from ReLU. (The exact form's mean has a closed form,
``m Φ(h) + (v/q) φ(h)`` with ``q = √(1+v)``, ``h = m/q``; the variance needs an integral anyway, and that
integral gives all three. The closed form is a check in the tests.)
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .localised import localised_moments, tabulate
from .moments import Moments, reflected, working_precision
from .normal import pdf
from .smooth import Jet, smooth_moments
from .widths import by_width

__all__ = ["gelu", "gelu_tanh"]

_SQRT_HALF = math.sqrt(0.5)
_KAPPA = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _erf_remainder(x: float) -> tuple[float, float]:
    tail = 0.5 * math.erfc(x * _SQRT_HALF)
    density = math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return -x * tail, x * density - tail


def _tanh_remainder(x: float) -> tuple[float, float]:
    y = _KAPPA * (x + _CUBIC * x**3)
    tail = math.exp(-2 * y) / (1 + math.exp(-2 * y))
    steep = 2 * _KAPPA * (1 + 3 * _CUBIC * x * x)
    return -x * tail, x * tail * (1 - tail) * steep - tail


_ERF_NODES = tabulate(_erf_remainder, 12.0, 64)
_TANH_NODES = tabulate(_tanh_remainder, 12.0, 96)


def _erf_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    cdf = 0.5 * torch.erfc(-x * _SQRT_HALF)
    return x * cdf, cdf + x * pdf(x)


def _erf_jet(x: Tensor) -> Jet:
    density = pdf(x)
    return Jet(*_erf_pair(x), density * (2 - x * x), density * x * (x * x - 4))


def _tanh_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    y = 2 * _KAPPA * (x + _CUBIC * x * x * x)
    gate = torch.sigmoid(y)
    steep = 2 * _KAPPA * (1 + 3 * _CUBIC * x * x)
    return x * gate, gate + x * gate * torch.sigmoid(-y) * steep


def _tanh_jet(x: Tensor) -> Jet:
    y = 2 * _KAPPA * (x + _CUBIC * x * x * x)
    y1 = 2 * _KAPPA * (1 + 3 * _CUBIC * x * x)
    y2 = 12 * _KAPPA * _CUBIC * x
    y3 = 12 * _KAPPA * _CUBIC
    s = torch.sigmoid(y)
    s1 = s * torch.sigmoid(-y)
    s2 = s1 * (1 - 2 * s)
    s3 = s1 * (1 - 6 * s1)
    g1 = s1 * y1
    g2 = s2 * y1 * y1 + s1 * y2
    g3 = s3 * y1 * y1 * y1 + 3 * s2 * y1 * y2 + s1 * y3
    return Jet(x * s, s + x * g1, 2 * g1 + x * g2, 3 * g2 + x * g3)


def _erf_left(mean: Tensor, var: Tensor) -> Moments:
    # beyond 40 the function is zero to every digit, and cubes there would overflow
    mean = mean.clamp_min(-1e6)
    return by_width(
        lambda m, v: smooth_moments(_erf_jet, _erf_pair, m.clamp_min(-100), v),
        lambda m, v: localised_moments(m, v, _ERF_NODES),
        1.0,
        mean,
        var,
    )


def _tanh_left(mean: Tensor, var: Tensor) -> Moments:
    return by_width(
        lambda m, v: smooth_moments(_tanh_jet, _tanh_pair, m.clamp_min(-100), v),
        lambda m, v: localised_moments(m, v, _TANH_NODES),
        0.5,
        mean,
        var,
    )


@working_precision
def gelu(mean: Tensor, var: Tensor) -> Moments:
    """``x Φ(x)`` (Hendrycks & Gimpel 2016)."""
    result = reflected(_erf_left, mean, var)
    return result._replace(mean=torch.where(var > 0, result.mean, F.gelu(mean)))


@working_precision
def gelu_tanh(mean: Tensor, var: Tensor) -> Moments:
    """``½ x (1 + tanh(√(2/π)(x + 0.044715 x³)))``, torch's ``approximate="tanh"``."""
    result = reflected(_tanh_left, mean, var)
    plain = F.gelu(mean, approximate="tanh")
    return result._replace(mean=torch.where(var > 0, result.mean, plain))
