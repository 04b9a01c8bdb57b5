"""A vector over the root of its own mean square: the marginals of ``c_i s^p`` with ``s = mean(c²) + ε``.

Layer normalisation is that with ``p = -½`` and ``c = x - mean(x)``, root-mean-square normalisation
with ``c = x``. The normaliser depends on ``c_i`` itself. Given ``c_i = m + σz``, with a Gaussian ``c``
of covariance ``C``, it has the mean::

    E[s | z] = E[s] + z Cov(c_i, s)/σ + (z² - 1) K/2σ²,        K = E[(c_i - m)² (s - E[s])] = 2 (C²)_ii/n

and about the variance ``Var[s] - Cov²/σ² - K²/2σ⁴``. It is taken for log-normal then (the gamma
distribution has no inverse moments when very wide), ``E[s^p | z] = E[s|z]^p (1 + ρ)^{p(p-1)/2}`` with
``ρ`` the ratio of variance and squared mean, and ``c_i s^p`` is averaged over ``z`` by six nodes. All is
computed as a difference from ``z = 0``, so that a small variance keeps its digits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .moments import root
from .quadrature import hermite

__all__ = ["Normaliser", "independent", "normalised"]

_NODES = hermite(6)
_LEAST = -0.95  # what a node may take off the normaliser


class Normaliser(NamedTuple):
    """``c`` and its normaliser ``s``; what is said of ``s`` broadcasts with ``c``.

    Attributes:
        mean: means of ``c``.
        var: variances of ``c``.
        cov: ``Cov(c_i, s)``.
        third: ``K``, see above.
        total: ``E[s]``.
        spread: ``Var[s]``.
    """

    mean: Tensor
    var: Tensor
    cov: Tensor
    third: Tensor
    total: Tensor
    spread: Tensor


def independent(mean: Tensor, var: Tensor, eps: float, centred: bool) -> Normaliser:
    """For independent elements along the last dimension.

    Not centred, ``C`` is diagonal. Centred, ``C = A V A`` with ``A = 1 - 11ᵀ/n``; all that is needed of
    it takes sums over ``v``, ``v²``, ``mv`` and ``m²v``.

    Returns:
        What :func:`normalised` wants.
    """
    n = mean.shape[-1]

    def average(t: Tensor) -> Tensor:
        return t.mean(-1, keepdim=True)

    if not centred:
        total = average(mean.square() + var) + eps
        spread = average(var * (4 * mean.square() + 2 * var)) / n
        return Normaliser(mean, var, 2 / n * mean * var, 2 / n * var.square(), total, spread)
    mean = mean - average(mean)
    level, product, square = average(var), average(var * mean), average(var.square())
    own = var * (1 - 2 / n) + level / n
    response = var * mean - product  # C m
    twice = var.square() * (1 - 2 / n) + square / n - (var - level).square() / n  # (C²)_ii
    quadratic = average(var * mean.square()) - product.square()  # mᵀ C m / n
    trace = square * (1 - 2 / n) + level.square() / n  # tr(C²) / n
    total = average(mean.square()) + (1 - 1 / n) * level + eps
    spread = (4 * quadratic + 2 * trace) / n
    return Normaliser(mean, own, 2 / n * response, 2 / n * twice.clamp_min(0), total, spread)


def normalised(parts: Normaliser, exponent: float = -0.5) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``c_i s^p``, of c's shape."""
    mean, var, cov, third, total, spread = parts
    noisy = var > 0
    inverse = torch.where(noisy, torch.where(noisy, var, 1).rsqrt(), 0)
    std = root(var)
    divisor = torch.where(total > 0, total, 1)
    first = cov * inverse / divisor
    second = 0.5 * third * inverse.square() / divisor
    rest = spread / divisor / divisor - first.square() - 2 * second.square()
    ratio = rest.clamp_min(0)
    wide = torch.log1p(ratio)
    bend = 0.5 * exponent * (exponent - 1)
    scale = divisor**exponent * torch.exp(bend * wide)
    shifts, widths = [], []
    for node, _ in _NODES:
        change = (node * first + (node * node - 1) * second).clamp_min(_LEAST)
        spreads = torch.log1p(ratio / (1 + change).square())
        grown = exponent * torch.log1p(change) + bend * (spreads - wide)
        moved = mean + node * std
        shifts.append(mean * torch.expm1(grown) + node * std * torch.exp(grown))
        widths.append(
            moved.square() * torch.exp(2 * grown) * torch.expm1(exponent * exponent * spreads)
        )
    weights = [weight for _, weight in _NODES]
    shift = _sum(weights, shifts)
    within = _sum(weights, widths)
    between = _sum(weights, [(s - shift).square() for s in shifts])
    return scale * (mean + shift), scale.square() * (within + between)


def _sum(weights: list[float], terms: list[Tensor]) -> Tensor:
    total = weights[0] * terms[0]
    for weight, term in zip(weights[1:], terms[1:], strict=True):
        total = total + weight * term
    return total
