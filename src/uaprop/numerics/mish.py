"""Mish, ``x tanh(softplus(x))``.

On the right ``mish(x) = x + h(x)`` with the small ``h(x) = -2x/((1+e^x)² + 1)``, so there
``Var = v (1 + 2 E[h']) + Var[h]``; on the left the function itself is small.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .exponential_sums import (
    MISH_LEFT,
    MISH_LEFT_SQUARED,
    MISH_RIGHT,
    MISH_RIGHT_SQUARED,
    half_moments,
)
from .moments import Moments, piecewise, working_precision
from .smooth import Jet, smooth_moments
from .widths import bounded, by_width, positive_part

__all__ = ["mish"]

_NARROW = 0.7


def _gate(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``T = tanh(softplus x)`` without loss on the left, ``1 - T``, ``1 - T²`` and the sigmoid."""
    e = torch.exp(-x.abs())
    left = (2 * e + e * e) / (2 + 2 * e + e * e)
    right = 2 * e * e / (1 + 2 * e + 2 * e * e)
    positive = x > 0
    gate = torch.where(positive, 1 - right, left)
    rest = torch.where(positive, right, 1 - left)
    return gate, rest, (1 + gate) * rest, torch.sigmoid(x)


def _left_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    gate, _, sech2, s = _gate(x)
    return x * gate, gate + x * sech2 * s


def _right_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    _, rest, sech2, s = _gate(x)
    return -x * rest, x * sech2 * s - rest


def _curvature(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Second to fourth derivative, the same for ``mish`` and for ``mish - x``.

    The gate is ``T(y(x))`` with ``T = tanh`` and ``y = softplus``: Faà di Bruno's formula.

    Returns:
        Second, third and fourth derivative.
    """
    gate, _, t1, y1 = _gate(x)
    t2 = -2 * gate * t1
    t3 = t1 * (6 * gate * gate - 2)
    t4 = t1 * gate * (16 - 24 * gate * gate)
    y2 = y1 * torch.sigmoid(-x)
    y3 = y2 * (1 - 2 * y1)
    y4 = y2 * (1 - 6 * y2)
    g1 = t1 * y1
    g2 = t2 * y1**2 + t1 * y2
    g3 = t3 * y1**3 + 3 * t2 * y1 * y2 + t1 * y3
    g4 = t4 * y1**4 + 6 * t3 * y1**2 * y2 + t2 * (3 * y2**2 + 4 * y1 * y3) + t1 * y4
    return 2 * g1 + x * g2, 3 * g2 + x * g3, 4 * g3 + x * g4


def _left_jet(x: Tensor) -> Jet:
    return Jet(*_left_pair(x), *_curvature(x))


def _right_jet(x: Tensor) -> Jet:
    return Jet(*_right_pair(x), *_curvature(x))


class _Remainder(NamedTuple):
    """Moments of ``r = mish - x₊``: on the left ``-|x| M``, on the right ``-x N``."""

    mean: Tensor
    square: Tensor
    left_product: Tensor  # E[x r; x < 0]
    right_product: Tensor  # E[x r; x > 0]
    gain: Tensor


def _remainder(mean: Tensor, var: Tensor) -> _Remainder:
    mean, var = bounded(mean, var)
    left, left_product, left_square = half_moments(
        mean, var, (1, MISH_LEFT), (2, MISH_LEFT), (2, MISH_LEFT_SQUARED)
    )
    right, right_product, right_square = half_moments(
        -mean, var, (1, MISH_RIGHT), (2, MISH_RIGHT), (2, MISH_RIGHT_SQUARED)
    )
    value = -left - right
    # E[r'] = Cov(x, r)/v, Stein's lemma read backwards
    gain = (left_product - right_product - mean * value) / var
    return _Remainder(value, left_square + right_square, left_product, -right_product, gain)


def _left_wide(mean: Tensor, var: Tensor) -> Moments:
    tail, positive, positive2 = positive_part(mean, var)
    r = _remainder(mean, var)
    first = positive + r.mean
    second = positive2 + 2 * r.right_product + r.square
    return Moments(first, tail + r.gain, second - first * first)


def _right_wide(mean: Tensor, var: Tensor) -> Moments:
    # h = mish - x = r + (-x)₊, so h² = r² - 2 x r + x² on the left
    tail, negative, negative2 = positive_part(-mean, var)
    r = _remainder(mean, var)
    first = negative + r.mean
    second = negative2 - 2 * r.left_product + r.square
    return Moments(first, r.gain - tail, second - first * first)


def _left(mean: Tensor, var: Tensor) -> Moments:
    def narrow(m: Tensor, v: Tensor) -> Moments:
        return smooth_moments(_left_jet, _left_pair, m, v)

    return by_width(narrow, _left_wide, _NARROW, mean, var)


def _right(mean: Tensor, var: Tensor) -> Moments:
    def narrow(m: Tensor, v: Tensor) -> Moments:
        return smooth_moments(_right_jet, _right_pair, m, v)

    h = by_width(narrow, _right_wide, _NARROW, mean, var)
    return Moments(mean + h.mean, 1 + h.gain, var * (1 + 2 * h.gain) + h.var)


@working_precision
def mish(mean: Tensor, var: Tensor) -> Moments:
    """``x tanh(softplus(x))``."""
    result = piecewise(mean <= 0, _left, _right, mean, var, safe=((-1.0, 0.25), (1.0, 0.25)))
    return result._replace(mean=torch.where(var > 0, result.mean, F.mish(mean)))
