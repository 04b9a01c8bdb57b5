"""GELU, ``x Φ(x)``, and its tanh form; both satisfy ``f(x) = x + f(-x)``.

For the exact form, with ``q = √(1+v)`` and ``t = -m/q ≥ 0`` on the left,

    E[f] = (v I₁(t) - t Q(t)) / q        E[f'] = Q(t) - t φ(t) / q²

(the familiar ``m Φ(h) + (v/q) φ(h)``, arranged not to cancel). Its variance, and all of the tanh
form, are integrals: by Gauss-Hermite quadrature for noise up to the function's own scale; deep in
the left tail with the factor ``e^{-x²}`` of ``f²`` absorbed into the density, which makes it
``N(m/(1+2v), v/(1+2v))``; and for wide noise over the few units around zero where GELU differs
from ReLU.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .localised import localised_moments, tabulate
from .moments import Moments, piecewise, reflected, working_precision
from .normal import pdf, upper_partial_moments
from .quadrature import hermite, tensors
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


_TAIL_RULE = hermite(40)
_ERF_NODES = tabulate(_erf_remainder, 12.0, 72)
_TANH_NODES = tabulate(_tanh_remainder, 12.0, 96)


def _erf_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    cdf = 0.5 * torch.erfc(-x * _SQRT_HALF)
    return x * cdf, cdf + x * pdf(x)


def _erf_jet(x: Tensor) -> Jet:
    density = pdf(x)
    square = x * x
    return Jet(
        *_erf_pair(x),
        density * (2 - square),
        density * x * (square - 4),
        density * (square * (7 - square) - 4),
    )


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
    s4 = s2 * (1 - 12 * s1)
    g1 = s1 * y1
    g2 = s2 * y1**2 + s1 * y2
    g3 = s3 * y1**3 + 3 * s2 * y1 * y2 + s1 * y3
    g4 = s4 * y1**4 + 6 * s3 * y1**2 * y2 + s2 * (3 * y2**2 + 4 * y1 * y3)
    return Jet(x * s, s + x * g1, 2 * g1 + x * g2, 3 * g2 + x * g3, 4 * g3 + x * g4)


def _erf_tail(mean: Tensor, var: Tensor) -> Moments:
    """Far on the left: ``E[f²] = K E[(x erfcx(-x/√2)/2)²]`` under the absorbed density."""
    scale = 1 + 2 * var
    centre, std = mean / scale, (var / scale).sqrt()
    nodes, weights = tensors(_TAIL_RULE, mean)
    x = centre.unsqueeze(-1) + std.unsqueeze(-1) * nodes
    values = 0.5 * x * torch.special.erfcx(-x * _SQRT_HALF)
    square = values.square() @ weights * torch.exp(-mean * mean / scale) / scale.sqrt()
    first, gain = _erf_mean_gain(mean, var)
    return Moments(first, gain, square - first * first)


def _erf_mean_gain(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    q = (1 + var).sqrt()
    t = -mean / q
    tail, first = upper_partial_moments(t, 1)
    return (var * first - t * tail) / q, tail - t * pdf(t) / (q * q)


def _erf_narrow(mean: Tensor, var: Tensor) -> Moments:
    def plain(m: Tensor, v: Tensor) -> Moments:
        return smooth_moments(_erf_jet, _erf_pair, m, v)

    # In a deviation f changes by e^{mσ}: beyond e, the bulk of f² is not where x is.
    mean = mean.clamp_min(-100)  # zero to every digit from 40 on
    far = mean * mean * var > 1
    return piecewise(far, _erf_tail, plain, mean, var, safe=((-2.0, 0.5), (0.0, 0.0)))


def _erf_wide(mean: Tensor, var: Tensor) -> Moments:
    return localised_moments(mean, var, _ERF_NODES)


def _erf_left(mean: Tensor, var: Tensor) -> Moments:
    return by_width(_erf_narrow, _erf_wide, 0.8, mean, var)


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
