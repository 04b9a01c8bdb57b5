"""Functions of ``e^{-|x|}`` under a Gaussian, in closed form and for every variance.

On each half-line the logistic family is a power series in ``w = e^{-|x|} ∈ [0, 1]`` whose nearest
singularity lies well outside, so a short polynomial (Chebyshev interpolation, fitted below in
60-digit arithmetic) has all digits: ``r(x) = Σ c_k e^{-k|x|}``. And the truncated exponential moments are
partial moments of the normal distribution: for ``x ~ N(m, v)``, ``a = m/σ + kσ``,

    E[xᵖ e^{kx}; x < 0] = (-σ)ᵖ φ(m/σ) I_p(a)/φ(a)

(complete the square; see :mod:`.normal` for ``I_p``), which neither overflows nor cancels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from .normal import pdf, scaled_partial_moments, upper_partial_moments

__all__ = [
    "LOGISTIC",
    "LOGISTIC_SQUARED",
    "MISH_LEFT",
    "MISH_LEFT_SQUARED",
    "MISH_RIGHT",
    "MISH_RIGHT_SQUARED",
    "SOFTPLUS",
    "SOFTPLUS_SQUARED",
    "ExponentialSum",
    "half_moment",
    "half_moments",
]

ExponentialSum = dict[torch.dtype, tuple[tuple[int, float], ...]]
_TERMS = {torch.float64: 17, torch.float32: 11}


def _interpolate(function: Callable[[Decimal], Decimal], count: int) -> list[Decimal]:
    """Monomial coefficients of the polynomial through Chebyshev's points of [0, 1]."""
    nodes = [
        Decimal(0.5 + 0.5 * math.cos((2 * j + 1) * math.pi / (2 * count))) for j in range(count)
    ]
    table = [function(x) for x in nodes]
    for level in range(1, count):  # Newton's divided differences
        for j in range(count - 1, level - 1, -1):
            table[j] = (table[j] - table[j - 1]) / (nodes[j] - nodes[j - level])
    coefficients = [Decimal(0)] * count
    for j in range(count - 1, -1, -1):  # multiply out
        for k in range(count - 1, 0, -1):
            coefficients[k] = coefficients[k - 1] - nodes[j] * coefficients[k]
        coefficients[0] = table[j] - nodes[j] * coefficients[0]
    return coefficients


def _fit(power: int, function: Callable[[Decimal], Decimal]) -> ExponentialSum:
    """Exponents and coefficients of ``w^power · function(w)``, per working precision."""
    with localcontext() as context:
        context.prec = 60
        return {
            dtype: tuple((power + k, float(c)) for k, c in enumerate(_interpolate(function, count)))
            for dtype, count in _TERMS.items()
        }


@functools.cache  # a logarithm takes longer than all the rest
def _softplus(w: Decimal) -> Decimal:
    return (1 + w).ln() / w


def _mish_denominator(w: Decimal) -> Decimal:
    return 1 + 2 * w + 2 * w * w


# s(x) = w/(1+w), log(1+e^x) = log(1+w), tanh(softplus(x)) = (2w+w²)/(2+2w+w²), all for x < 0; and
# 1 - tanh(softplus(x)) = 2w²/(1+2w+2w²) for x > 0.
LOGISTIC = _fit(1, lambda w: 1 / (1 + w))
LOGISTIC_SQUARED = _fit(2, lambda w: 1 / (1 + w) ** 2)
SOFTPLUS = _fit(1, _softplus)
SOFTPLUS_SQUARED = _fit(2, lambda w: _softplus(w) ** 2)
MISH_LEFT = _fit(1, lambda w: (2 + w) / (2 + 2 * w + w * w))
MISH_LEFT_SQUARED = _fit(2, lambda w: ((2 + w) / (2 + 2 * w + w * w)) ** 2)
MISH_RIGHT = _fit(2, lambda w: 2 / _mish_denominator(w))
MISH_RIGHT_SQUARED = _fit(4, lambda w: (2 / _mish_denominator(w)) ** 2)


def half_moments(mean: Tensor, var: Tensor, *wanted: tuple[int, ExponentialSum]) -> list[Tensor]:
    """``E[|x|ᵖ r(x); x < 0]`` for each pair ``(p, r)`` of a power and an exponential sum.

    Args:
        mean: means of ``x``.
        var: variances of ``x``, all positive.
        *wanted: powers from 0 to 2, with exponential sums from this module.

    Returns:
        One tensor per pair, of ``mean``'s shape, none negative where ``r`` is not.
    """
    tables = [(power, dict(series[mean.dtype])) for power, series in wanted]
    count = max(max(table) for _, table in tables)
    std = var.sqrt()
    terms = _half_moments(torch.arange(1, count + 1, device=mean.device), mean, std)
    results = []
    for power, table in tables:
        row = [table.get(k, 0.0) for k in range(1, count + 1)]
        coefficients = torch.tensor(row, dtype=mean.dtype, device=mean.device)
        results.append(terms[power] @ coefficients * std**power)
    return results


def half_moment(k: int, mean: Tensor, var: Tensor) -> Tensor:
    """``E[e^{kx}; x < 0]`` for positive variances."""
    exponent = torch.tensor([k], device=mean.device)
    return _half_moments(exponent, mean, var.sqrt())[0].squeeze(-1)


def _half_moments(k: Tensor, mean: Tensor, std: Tensor) -> list[Tensor]:
    """``E[|x/σ|ᵖ e^{kx}; x < 0]`` for ``p = 0, 1, 2``, along a new last dimension of ``k``."""
    mean, std = mean.unsqueeze(-1), std.unsqueeze(-1)
    z = mean / std
    a = z + k * std
    outside = a >= 0  # the tilted bulk lies at x > 0: only its tail counts
    tails = scaled_partial_moments(torch.where(outside, a, 0))
    b = torch.where(outside, 0, -a)
    q, first, second = upper_partial_moments(b)
    bulks = (1 - q, b + first, 1 + b * b - second)
    growth = torch.exp(torch.where(outside, 0, k * mean + 0.5 * (k * std) ** 2))
    density = pdf(z)
    return [
        torch.where(outside, density * tail, growth * bulk)
        for tail, bulk in zip(tails, bulks, strict=True)
    ]
