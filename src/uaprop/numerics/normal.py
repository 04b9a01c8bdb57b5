"""The standard normal's density and upper partial moments, relatively accurate in the tail.

For ``u ~ N(0, 1)`` and ``t ≥ 0`` the *partial moments* are ``I_n(t) = E[(u - t)₊ⁿ]``::

    I_0 = Q(t)      I_1 = φ(t) - t Q(t)      I_{n+1} = n I_{n-1} - t I_n

These cancel badly in the tail. The recurrence run backwards does not: the ratios
``r_n = I_n / I_{n-1}`` obey ``r_n = n / (t + r_{n+1})``, which is Laplace's continued fraction
(Abramowitz & Stegun 7.1.14), with ``I_0 = φ/(t + r_1)``. Every rule for a function with a kink
rests on these numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .moments import untracked
from .tails import partial_moments, partial_moments_of_values

__all__ = ["SQRT_2PI", "pdf", "scaled_partial_moments", "upper_partial_moments"]

SQRT_2PI = math.sqrt(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)

# Where the continued fraction takes over, and how many terms it needs there for full precision.
_SPLIT = {torch.float64: (4.0, 22), torch.float32: (2.25, 15)}


def pdf(z: Tensor) -> Tensor:
    """The standard normal density ``φ(z) = exp(-z²/2)/√(2π)``."""
    return torch.exp(-0.5 * z * z) / SQRT_2PI


def _ratios(t: Tensor, terms: int, order: int) -> list[Tensor]:
    """``[r_1, …, r_order]`` by the continued fraction, for ``t`` away from zero.

    It starts from the fixed point of ``r = n/(t + r)`` half a step on, which saves a third of it.

    Returns:
        ``order`` tensors of ``t``'s shape.
    """
    ratio = 0.5 * ((t * t + 4 * (terms + 0.5)).sqrt() - t)
    ratios = []
    for n in range(terms, 0, -1):
        ratio = n / (t + ratio)
        if n <= order:
            ratios.append(ratio)
    return ratios[::-1]


def _recurrence(first: Tensor, second: Tensor, t: Tensor, order: int) -> list[Tensor]:
    moments = [first, second]
    for n in range(1, order):
        moments.append(n * moments[n - 1] - t * moments[n])
    return moments[: order + 1]


def upper_partial_moments(t: Tensor, order: int = 2) -> list[Tensor]:
    """``[I_0(t), …, I_order(t)]`` for ``t ≥ 0``, each of ``t``'s shape.

    Relative accuracy is a few units in the last place until the result underflows.

    Returns:
        ``order + 1`` tensors of ``t``'s shape.
    """
    if order <= 2:
        function = partial_moments_of_values if untracked(t) else partial_moments
        return list(function(t)[: order + 1])
    close = torch.where(t < _SPLIT[t.dtype][0], t, 0)
    tail = 0.5 * torch.erfc(close * _SQRT_HALF)
    direct = _recurrence(tail, pdf(close) - close * tail, close, order)
    return _joined(direct, t, pdf(t))


def scaled_partial_moments(t: Tensor, order: int = 2) -> list[Tensor]:
    """``[I_0(t)/φ(t), …]`` for ``t ≥ 0``: the first is Mills' ratio. Never underflows."""
    close = torch.where(t < _SPLIT[t.dtype][0], t, 0)
    mills = _SQRT_HALF_PI * torch.special.erfcx(close * _SQRT_HALF)
    direct = _recurrence(mills, 1 - close * mills, close, order)
    return _joined(direct, t, torch.ones_like(t))


def _joined(direct: list[Tensor], t: Tensor, density: Tensor) -> list[Tensor]:
    """The direct values where they have their digits, the continued fraction beyond."""
    split, terms = _SPLIT[t.dtype]
    near = t < split
    far = torch.where(near, split, t)
    ratios = _ratios(far, terms, len(direct) - 1)
    product = density / (far + ratios[0])
    moments = [torch.where(near, direct[0], product)]
    for ratio, value in zip(ratios, direct[1:], strict=True):
        product = product * ratio
        moments.append(torch.where(near, value, product))
    return moments
