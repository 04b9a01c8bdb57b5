"""Exponential, powers, sine, cosine and the error function: closed forms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .moments import Moments, in_chunks, working_precision
from .quadrature import legendre, tensors

__all__ = [
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "ndtr",
    "power",
    "sin",
    "sinh",
]

_ANGLES = legendre(48)
_LOG_LARGEST = {torch.float64: 350.0, torch.float32: 40.0}


@working_precision
def exp(mean: Tensor, var: Tensor) -> Moments:
    """The log-normal: ``E = e^{m+v/2}``, ``Var = E² (e^v - 1)``, written so that it cannot be ∞·0."""
    first = torch.exp(mean + 0.5 * var)
    noisy = var > 0
    safe = torch.where(noisy, var, 1)
    root = torch.exp(torch.where(noisy, mean + var, 0)) * (-torch.expm1(-safe)).sqrt()
    # at v = 0 the variance is 0 with slope e^{2m}, which must not become ∞·0
    slope = torch.exp(2 * mean.clamp_max(_LOG_LARGEST[mean.dtype]))
    return Moments(first, first, torch.where(noisy, root * root, slope * var))


@working_precision
def exp2(mean: Tensor, var: Tensor) -> Moments:
    """``2^x = e^{x log 2}``."""
    rate = math.log(2)
    first, gain, spread = exp(rate * mean, rate * rate * var)
    return Moments(torch.where(var > 0, first, torch.exp2(mean)), rate * gain, spread)


@working_precision
def expm1(mean: Tensor, var: Tensor) -> Moments:
    """``e^x - 1``."""
    return exp(mean, var)._replace(mean=torch.expm1(mean + 0.5 * var))


@working_precision
def sinh(mean: Tensor, var: Tensor) -> Moments:
    """``E = e^{v/2} sinh m``, ``Var = ½(1 - e^{-v})(e^{2v} cosh 2m + e^v)``."""
    even, odd = _halves(mean, var)
    return Moments(odd, even, _hyperbolic(mean, var, odd=True))


@working_precision
def cosh(mean: Tensor, var: Tensor) -> Moments:
    """``E = e^{v/2} cosh m``, ``Var = ½(1 - e^{-v})(e^{2v} cosh 2m - e^v)``."""
    even, odd = _halves(mean, var)
    return Moments(even, odd, _hyperbolic(mean, var, odd=False))


def _halves(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """``e^{v/2} cosh m`` and ``e^{v/2} sinh m``: ``½ e^{v/2+|m|} (1 ± e^{-2|m|})``, never ∞·0."""
    noisy, right = var > 0, mean >= 0
    size = torch.where(right, mean, -mean)
    grown = 0.5 * torch.exp(0.5 * var + size)
    even = grown * (1 + torch.exp(-2 * size))
    finite = torch.where(mean == 0, grown.clamp_max(torch.finfo(mean.dtype).max), grown)
    odd = torch.where(right, finite, -finite) * -torch.expm1(-2 * size)
    return torch.where(noisy, even, torch.cosh(mean)), torch.where(noisy, odd, torch.sinh(mean))


def _hyperbolic(mean: Tensor, var: Tensor, odd: bool) -> Tensor:
    """The variance; ``e^{2v} cosh 2m - e^v = e^v ((e^v - 1) + 2 e^v sinh² m)`` where that would cancel."""
    small = (var < 1) & (mean.abs() < 1)
    m, v = torch.where(small, mean, 0), torch.where(small, var, 0)
    grown, sine = torch.exp(v), torch.sinh(m)
    other = grown + 1 if odd else torch.expm1(v)
    inner = 0.5 * torch.expm1(v) * (other + 2 * grown * sine * sine)
    # elsewhere as a square, whose root does not overflow before its time
    noisy = var > 0
    m = torch.where(small, 0, torch.where(mean >= 0, mean, -mean))
    v = torch.where(small | ~noisy, 1, var)
    shift = 2 * torch.exp(-v - 2 * m)
    shape = 1 + torch.exp(-4 * m) + (shift if odd else -shift)
    root = torch.exp(v + torch.where(noisy, m, 0)) * (-0.25 * torch.expm1(-v) * shape).sqrt()
    outer = torch.where(root.isnan(), torch.inf, root * root)  # 0 · ∞, where the mean is infinite
    limit = _LOG_LARGEST[mean.dtype]
    # at v = 0 it is 0 with the slope of the square of the derivative
    flat = var * torch.exp(2 * mean.abs().clamp_max(limit)) / 4
    return torch.where(small, inner, torch.where(noisy, outer, flat))


@working_precision
def power(mean: Tensor, var: Tensor, exponent: int) -> Moments:
    """``xⁿ`` for a whole ``n ≥ 0``, with ``μ_k = E[xᵏ] = m μ_{k-1} + (k-1) v μ_{k-2}``.

    ``Var = Σ_{j≥1} j! C(n,j)² vʲ μ_{n-j}²`` (the Hermite expansion ``Σ vʲ E[f⁽ʲ⁾]²/j!``), all terms
    positive.

    Returns:
        The moments, of the mean's shape.
    """
    n = exponent
    noisy = var > 0
    largest = torch.finfo(mean.dtype).max
    raw = [torch.ones_like(mean), mean]
    for k in range(2, n + 1):
        last, before = (raw[i].clamp(-largest, largest) for i in (k - 1, k - 2))  # never 0·∞
        raw.append(mean * last + (k - 1) * (var * before))
    std = torch.where(noisy, var, 1).sqrt()
    total = torch.zeros_like(mean)
    for j in range(1, n + 1):
        root = raw[n - j]
        for _ in range(j):  # one factor at a time, and squared last: no overflow before its time
            root = root * std
        total = total + math.factorial(j) * math.comb(n, j) ** 2 * root * root
    gain = n * raw[n - 1] if n > 0 else torch.zeros_like(mean)
    limit = math.sqrt(largest) / 2
    flat = var * gain.clamp(-limit, limit) ** 2  # zero at v = 0, with the right slope
    value = torch.where(noisy, raw[n], mean**n)
    return Moments(value, gain, torch.where(noisy, total, flat))


def _wave(var: Tensor, other: Tensor) -> Tensor:
    """``½(1 - e^{-v})((1 - e^{-v}) + 2 e^{-v} c²)``, with ``c`` the derivative at the mean."""
    lost = -torch.expm1(-var)
    return 0.5 * lost * (lost + 2 * torch.exp(-var) * other * other)


@working_precision
def sin(mean: Tensor, var: Tensor) -> Moments:
    """``E[sin x] = e^{-v/2} sin m``."""
    damping = torch.exp(-0.5 * var)
    sine, cosine = torch.sin(mean), torch.cos(mean)
    return Moments(damping * sine, damping * cosine, _wave(var, cosine))


@working_precision
def cos(mean: Tensor, var: Tensor) -> Moments:
    """``E[cos x] = e^{-v/2} cos m``."""
    damping = torch.exp(-0.5 * var)
    sine, cosine = torch.sin(mean), torch.cos(mean)
    return Moments(damping * cosine, -damping * sine, _wave(var, sine))


@working_precision
def erf(mean: Tensor, var: Tensor) -> Moments:
    """``E[erf x] = erf(m/√(1+2v))``; the variance is Plackett's integral, see :func:`_erf`."""
    return in_chunks(_erf, mean, var)


@working_precision
def erfc(mean: Tensor, var: Tensor) -> Moments:
    """``1 - erf x``, whose mean keeps its digits in the right tail."""
    _, gain, spread = in_chunks(_erf, mean, var)
    return Moments(torch.erfc(mean / (1 + 2 * var).sqrt()), -gain, spread)


@working_precision
def ndtr(mean: Tensor, var: Tensor) -> Moments:
    """``Φ(x) = ½ erfc(-x/√2)``: ``E = Φ(m/√(1+v))``."""
    root = math.sqrt(0.5)
    _, gain, spread = in_chunks(_erf, root * mean, 0.5 * var)
    tail = 0.5 * torch.erfc(-root * mean / (1 + var).sqrt())  # with digits that torch's own has not
    first = torch.where(var > 0, tail, torch.special.ndtr(mean))
    return Moments(first, 0.5 * root * gain, 0.25 * spread)


def _erf(mean: Tensor, var: Tensor) -> Moments:
    """The probit's bivariate integral (Plackett 1954).

    With ``h² = 2m²/(1+2v)`` and ``sin α = ρ = 2v/(1+2v)`` the correlation of two probits of the same
    ``x``, ``Var = (2/π) ∫₀^α exp(-h²/(1 + sin θ)) dθ``: positive terms, whatever the variance.

    Returns:
        The moments, of the mean's shape.
    """
    scale = 1 + 2 * var
    h2 = 2 * (mean / scale.sqrt()).clamp(-1e4, 1e4) ** 2
    ratio = mean / scale.sqrt()
    gain = 2 / math.sqrt(math.pi) * torch.exp(-0.5 * h2) / scale.sqrt()
    # asin(2v/(1+2v)), as an arctangent whose derivative stays finite
    angle = torch.atan2(2 * var, (1 + 4 * var).sqrt())
    nodes, weights = tensors(_ANGLES, mean)
    sines = torch.sin(nodes * angle.unsqueeze(-1))
    total = torch.exp(-h2.unsqueeze(-1) / (1 + sines)) @ weights
    return Moments(torch.erf(ratio), gain, 2 / math.pi * angle * total)
