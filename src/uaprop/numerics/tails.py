"""The normal's partial moments ``I_0, I_1, I_2`` by one polynomial, without cases or iterations.

See ``normal.py`` for what they are. All three follow from ``r = I_2/I_1`` by sums, products and one division
of positive numbers, so each is as accurate, relatively, as ``r`` and the density are::

    I_1 = φ/(1 + t (t + r))      I_0 = (t + r) I_1      I_2 = r I_1

``r(t)`` falls from ``√(π/2)`` like ``2/t``, as ``s = √(t² + k) - t`` does, and ``r/s`` is nearly constant: a
polynomial in ``s`` of a low degree. Its coefficients minimise the largest relative error over ``0 ≤ t ≤ end``
(Remez' algorithm in 60 digits, with the exact ``r`` by mpmath, up to 13 and to 37.6); ``k`` was chosen by
trial among the squares, so that ``s`` is exact at zero. Beyond ``end`` the second moment is a subnormal
number, and all three are taken for zero: arithmetic with subnormal numbers is many times slower.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "beyond",
    "beyond_of_values",
    "end_of",
    "partial_moments",
    "partial_moments_of_values",
]

_SQRT_2PI = math.sqrt(2 * math.pi)
_NEARLY = 0.999  # of the way to the end, where the tail is cut off


class _Fit(NamedTuple):
    end: float
    k: float
    coefficients: tuple[float, ...]  # of r/s, in rising powers of s


_FITS = {
    # largest relative error 1.8e-8
    torch.float32: _Fit(
        12.6,
        16.0,
        (
            0.2500004134,
            -6.779296268e-6,
            0.00393693732,
            -6.617713004e-5,
            0.00014080658,
            -5.558267568e-5,
            9.536047193e-6,
            -1.061151496e-6,
            5.792259052e-8,
        ),
    ),
    # largest relative error 1e-16
    torch.float64: _Fit(
        37.3,
        25.0,
        (
            0.16000000000058225,
            -9.7456837160104248e-12,
            0.00332800007383037485,
            -3.37227193649107165e-10,
            0.0000249866444700096904,
            -2.34023220552484317e-9,
            -4.04336217418009507e-7,
            -5.18004528648122769e-9,
            -2.36035575984658159e-10,
            -4.48007218618563824e-9,
            2.89248463695958518e-9,
            -1.65865056736435546e-9,
            7.53970617742737117e-10,
            -2.56233828967621266e-10,
            6.60729440993750682e-11,
            -1.29145238653116806e-11,
            1.89090170316678572e-12,
            -2.01503595263224298e-13,
            1.47130193331263303e-14,
            -6.5369985199085199e-16,
            1.32380131254061485e-17,
        ),
    ),
}


def end_of(dtype: torch.dtype) -> float:
    """Where the tail is taken to be empty."""
    return _FITS[dtype].end


def partial_moments(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``I_0(t), I_1(t), I_2(t)`` for ``t ≥ 0``, which may be infinite.

    Returns:
        Three tensors of ``t``'s shape.
    """
    tail, first, ratio = _parts(t.clamp(0, end_of(t.dtype)))
    return tail, first, ratio * first


def beyond(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``I_0``, ``I_1`` and ``I_2 - I_1²``, the variance of what is beyond; for ``t`` from zero to the end.

    The square would be a subnormal number long before the others are.

    Returns:
        Three tensors of ``t``'s shape.
    """
    tail, first, ratio = _parts(t)
    return tail, first, first * (ratio - first)


def _parts(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``I_0``, ``I_1`` and ``r``."""
    end, k, coefficients = _FITS[t.dtype]
    s = (t * t + k).sqrt() - t
    ratio = s * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        ratio = ratio * s + coefficient
    ratio = ratio * s
    density = torch.exp(t * t * -0.5)
    density = torch.where(t < _NEARLY * end, density, 0)
    tail = t + ratio
    first = density / (t * tail * _SQRT_2PI + _SQRT_2PI)
    return tail * first, first, ratio


def partial_moments_of_values(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`partial_moments` without gradients and with few allocations; ``t`` is left as it is."""
    tail, first, ratio = _parts_of_values(t)
    return tail, first, ratio.mul_(first)


def beyond_of_values(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`beyond` without gradients and with few allocations; ``t`` may be infinite."""
    tail, first, ratio = _parts_of_values(t)
    return tail, first, ratio.sub_(first).mul_(first)


def _parts_of_values(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    end, _, coefficients = _FITS[t.dtype]
    # numbers as tensors: torch.addcmul adds them for free
    square, zero, scale, second, *rest = _numbers(t.dtype)
    t = t.clamp(0, end)
    s = torch.addcmul(square, t, t).sqrt_().sub_(t)
    ratio = torch.add(second, s, alpha=coefficients[-1])
    for coefficient in rest:
        torch.addcmul(coefficient, ratio, s, out=ratio)
    ratio.mul_(s)
    density = torch.addcmul(zero, t, t, value=-0.5, out=s).exp_()
    torch.threshold_(density, math.exp(-0.5 * (_NEARLY * end) ** 2), 0.0)
    tail = t + ratio
    first = density.div_(torch.addcmul(scale, t, tail, value=_SQRT_2PI, out=t))
    return tail.mul_(first), first, ratio


@functools.cache
def _numbers(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """``k``, 0, √(2π), and all coefficients but the highest in falling powers."""
    fit = _FITS[dtype]
    numbers = (fit.k, 0.0, _SQRT_2PI, *fit.coefficients[-2::-1])
    return tuple(torch.tensor(x, dtype=dtype, device="cpu") for x in numbers)
