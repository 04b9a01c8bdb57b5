"""The logistic family: sigmoid, tanh, softplus, log-sigmoid and SiLU.

For noise up to about the function's own scale the moments come from Gauss-Hermite quadrature, beyond it
from exponential sums (:mod:`.exponential_sums`). Both keep their *relative* accuracy in the
tails, where a mixture of eight probits (Monahan & Stefanski 1992), good to 2e-9 absolutely, does not.

In the wide regime, with ``R = e^x/(1+e^x)`` on the left half-line and ``Q = P(x > 0)``::

    E[s]  = E[R; x<0] + Q - E[R(-x); x>0]          s'  = R - R²
    E[s²] = E[R²; x<0] + Q - E[2R(-x) - R(-x)²; x>0]

and likewise for ``softplus = x₊ + log(1+e^{-|x|})`` and ``SiLU = x₊ - |x| R(-|x|)``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .exponential_sums import (
    LOGISTIC,
    LOGISTIC_SQUARED,
    SOFTPLUS,
    SOFTPLUS_SQUARED,
    half_moments,
)
from .moments import Moments, folded, piecewise, reflected, scaled, working_precision
from .quadrature import legendre, tensors
from .smooth import Jet, smooth_moments
from .widths import bounded, by_width, positive_part

__all__ = ["logsigmoid", "sigmoid", "silu", "softplus", "tanh"]

_PATH = legendre(5)
_NARROW = 0.8  # σ up to which Gauss-Hermite quadrature has all digits


# ---------------------------------------------------------------- sigmoid and tanh


def _sigmoid_jet(x: Tensor) -> Jet:
    s = torch.sigmoid(x)
    s1 = s * torch.sigmoid(-x)
    s2 = s1 * (1 - 2 * s)
    return Jet(s, s1, s2, s1 * (1 - 6 * s1), s2 * (1 - 12 * s1))


def _sigmoid_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x)
    return s, s * torch.sigmoid(-x)


def _sigmoid_wide(mean: Tensor, var: Tensor) -> Moments:
    mean, var = bounded(mean, var)
    tail, _, _ = positive_part(mean, var)
    left, left2 = half_moments(mean, var, (0, LOGISTIC), (0, LOGISTIC_SQUARED))
    right, right2 = half_moments(-mean, var, (0, LOGISTIC), (0, LOGISTIC_SQUARED))
    first = left + (tail - right)
    second = left2 + (tail - 2 * right + right2)
    return Moments(first, left - left2 + right - right2, second - first * first)


def _sigmoid_left(mean: Tensor, var: Tensor) -> Moments:
    def narrow(m: Tensor, v: Tensor) -> Moments:
        return smooth_moments(_sigmoid_jet, _sigmoid_pair, m, v)

    return by_width(narrow, _sigmoid_wide, _NARROW, mean, var)


@working_precision
def sigmoid(mean: Tensor, var: Tensor) -> Moments:
    """``1/(1+e^{-x})``, from its moments at ``-|m|`` by ``s(x) = 1 - s(-x)``."""
    right = mean > 0
    left = _sigmoid_left(folded(mean, right), var)
    plain = torch.sigmoid(mean)
    value = torch.where(right, 1 - left.mean, left.mean)
    return Moments(torch.where(var > 0, value, plain), left.gain, left.var)


@working_precision
def tanh(mean: Tensor, var: Tensor) -> Moments:
    """``tanh x = 2 s(2x) - 1``, odd in the mean.

    Near zero the mean is ``m`` times the average gain on the way from 0, so that it keeps its digits.

    Returns:
        The moments, of the mean's shape.
    """
    result = _sigmoid_left(scaled(folded(mean, mean > 0), 2), scaled(var, 4))
    return Moments(_tanh_mean(mean, var, result.mean), 4 * result.gain, 4 * result.var)


def _tanh_mean(mean: Tensor, var: Tensor, sigmoid_mean: Tensor) -> Tensor:
    size = 1 - 2 * sigmoid_mean
    small = mean.abs() < 0.2

    def slope(m: Tensor, v: Tensor) -> Moments:
        nodes, weights = tensors(_PATH, m)
        way = 2 * folded(m, m > 0).unsqueeze(-1) * nodes
        gains = _sigmoid_left(way, scaled(v, 4).unsqueeze(-1).expand(way.shape)).gain
        return Moments(4 * m * (gains @ weights), m, v)

    def far(m: Tensor, v: Tensor) -> Moments:
        return Moments(m, m, v)

    near = piecewise(small, slope, far, mean, var, safe=((0.0, 1.0), (1.0, 1.0))).mean
    noisy = torch.where(small, near, torch.where(mean > 0, size, -size))
    return torch.where(var > 0, noisy, torch.tanh(mean))


# ---------------------------------------------------------------- softplus and log-sigmoid


def _softplus_value(x: Tensor) -> Tensor:
    return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))


def _softplus_jet(x: Tensor) -> Jet:
    return Jet(_softplus_value(x), *_sigmoid_jet(x)[:4])


def _softplus_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return _softplus_value(x), torch.sigmoid(x)


def _softplus_wide(mean: Tensor, var: Tensor) -> Moments:
    tail, positive, positive2 = positive_part(mean, var)
    mean, var = bounded(mean, var)
    logistic, left, left2 = half_moments(
        mean, var, (0, LOGISTIC), (0, SOFTPLUS), (0, SOFTPLUS_SQUARED)
    )
    logistic_r, right, right2, product = half_moments(
        -mean, var, (0, LOGISTIC), (0, SOFTPLUS), (0, SOFTPLUS_SQUARED), (1, SOFTPLUS)
    )
    first = positive + left + right
    second = positive2 + 2 * product + left2 + right2
    return Moments(first, logistic + (tail - logistic_r), second - first * first)


def _softplus_left(mean: Tensor, var: Tensor) -> Moments:
    def narrow(m: Tensor, v: Tensor) -> Moments:
        return smooth_moments(_softplus_jet, _softplus_pair, m, v)

    return by_width(narrow, _softplus_wide, _NARROW, mean, var)


@working_precision
def softplus(mean: Tensor, var: Tensor, beta: float = 1.0) -> Moments:
    """``log(1 + e^{βx})/β``; torch's switch to ``x`` at ``βx > threshold`` changes nothing in value."""
    result = reflected(_softplus_left, scaled(mean, beta), scaled(var, beta * beta))
    value = torch.where(var > 0, result.mean / beta, F.softplus(mean, beta))
    return Moments(value, result.gain, result.var / (beta * beta))


@working_precision
def logsigmoid(mean: Tensor, var: Tensor) -> Moments:
    """``log s(x) = -softplus(-x)``."""
    result = softplus(-mean, var)
    value = torch.where(var > 0, -result.mean, F.logsigmoid(mean))
    return Moments(value, result.gain, result.var)


# ---------------------------------------------------------------- SiLU


def _silu_jet(x: Tensor) -> Jet:
    s, s1, s2, s3, s4 = _sigmoid_jet(x)
    return Jet(x * s, s + x * s1, 2 * s1 + x * s2, 3 * s2 + x * s3, 4 * s3 + x * s4)


def _silu_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x)
    return x * s, s + x * s * torch.sigmoid(-x)


def _silu_wide(mean: Tensor, var: Tensor) -> Moments:
    tail, positive, positive2 = positive_part(mean, var)
    mean, var = bounded(mean, var)
    s, left, left_sq, square = half_moments(
        mean, var, (0, LOGISTIC), (1, LOGISTIC), (1, LOGISTIC_SQUARED), (2, LOGISTIC_SQUARED)
    )
    s_r, right, right_sq, square_r, product = half_moments(
        -mean,
        var,
        (0, LOGISTIC),
        (1, LOGISTIC),
        (1, LOGISTIC_SQUARED),
        (2, LOGISTIC_SQUARED),
        (2, LOGISTIC),
    )
    first = positive - left - right
    second = positive2 - 2 * product + square + square_r
    gain = (s - left + left_sq) + (tail - s_r + right - right_sq)
    return Moments(first, gain, second - first * first)


def _silu_left(mean: Tensor, var: Tensor) -> Moments:
    def narrow(m: Tensor, v: Tensor) -> Moments:
        return smooth_moments(_silu_jet, _silu_pair, m, v)

    return by_width(narrow, _silu_wide, _NARROW, mean, var)


@working_precision
def silu(mean: Tensor, var: Tensor) -> Moments:
    """``x s(x)``."""
    result = reflected(_silu_left, mean, var)
    return result._replace(mean=torch.where(var > 0, result.mean, F.silu(mean)))
