"""Moments by Gauss-Legendre quadrature in a variable in which the function is smooth.

``E[g(x)] = ∫ g(x(s)) φ((x(s) - m)/σ) x'(s)/σ ds``. With ``x = sinh s`` a function whose singularities are
about one away from the real axis is smooth in ``s`` for any mean and variance, from noise far below the
function's scale to noise far above; with ``x = sin s`` so is what ends at ±1. Very small noise takes the
expansion of :mod:`~uaprop.numerics.smooth` in four derivatives.

The weights are divided by their sum: a function that is not defined everywhere has the moments of the
Gaussian cut off there. The gain is the slope of the regression, ``Cov(f(x), x)/Var[x]``, which is ``E[f']``
for a Gaussian that is not cut off (Stein).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .moments import HALF, Moments, in_chunks, piecewise
from .quadrature import legendre, tensors
from .smooth import Jet

__all__ = ["SINH", "Function", "Variable", "moments_of"]

_RULE = legendre(56)
_REACH = 9.0  # standard deviations
_SMALL = 1e-3  # standard deviations of the function's scale, for the expansion
_SINGLE = ("mps",)  # devices without float64

Map = Callable[[Tensor], Tensor]


class Variable(NamedTuple):
    """A change of variable: ``s`` from ``x``, ``x`` from ``s``, and ``dx/ds``."""

    inverse: Map
    value: Map
    slope: Map


SINH = Variable(torch.asinh, torch.sinh, torch.cosh)


class Function(NamedTuple):
    """A scalar function, and where it is smooth.

    Attributes:
        value: the function.
        jet: its value and four derivatives, for small noise.
        variable: in which it is smooth.
        scale: the standard deviation that its derivatives do not change much over, from the mean.
        domain: from where to where it is defined, from the mean; None for everywhere.
        reach: how many standard deviations of the noise count.
        flat: whether the function goes on beyond the domain, constant.
    """

    value: Map
    jet: Callable[[Tensor], Jet]
    variable: Variable
    scale: Map
    domain: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    reach: float = _REACH
    flat: bool = False


def moments_of(function: Function, mean: Tensor, var: Tensor) -> Moments:
    """Mean, gain and variance of a function, of the input's shape and dtype; computed in float64."""
    dtype = mean.dtype
    wide = dtype if mean.device.type in _SINGLE else torch.float64
    found = in_chunks(lambda m, v: _moments(function, m, v), mean.to(wide), var.to(wide))
    noisy = var > 0
    own = function.value(mean.float() if dtype in HALF else mean).to(dtype)
    first = torch.where(noisy, found.mean.to(dtype), own)
    spread = torch.where(noisy, found.var.clamp_min(0).to(dtype), 0 * var)
    return Moments(first, found.gain.to(dtype), spread)


def _moments(function: Function, mean: Tensor, var: Tensor) -> Moments:
    def expansion(m: Tensor, v: Tensor) -> Moments:
        f, f1, f2, f3, f4 = function.jet(m)
        return Moments(
            f + v * (0.5 * f2 + 0.125 * v * f4),
            f1 + 0.5 * v * f3,
            v * (f1 * f1 + v * (0.5 * f2 * f2 + f1 * f3)),
        )

    def quadrature(m: Tensor, v: Tensor) -> Moments:
        return _quadrature(function, m, v)

    small = (var < (_SMALL * function.scale(mean.detach())).square()) | (var == 0)
    centre = 0.5 if function.domain is not None else 0.0  # inside every domain
    return piecewise(small, expansion, quadrature, mean, var, safe=((centre, 0.0), (centre, 1e-2)))


def _quadrature(function: Function, mean: Tensor, var: Tensor) -> Moments:
    m, std = mean.unsqueeze(-1), var.sqrt().unsqueeze(-1)
    variable = function.variable
    with torch.no_grad():
        start, end = m - function.reach * std, m + function.reach * std
        if function.domain is not None:
            low, high = (t.unsqueeze(-1) for t in function.domain(mean))
            # both: the whole reach may lie on one side of the domain
            start, end = (torch.minimum(torch.maximum(t, low), high) for t in (start, end))
        first, last = variable.inverse(start), variable.inverse(end)
        middle = torch.minimum(torch.maximum(torch.zeros_like(first), first), last)
        nodes, weights = tensors(_RULE, mean)
        panels = ((first, middle), (middle, last))  # a kink at zero is at the end of both
        s = torch.cat([a + (b - a) * nodes for a, b in panels], -1)
        steps = torch.cat([(b - a) * weights for a, b in panels], -1)
        x = variable.value(s)
        steps = steps * variable.slope(s)
        values = function.value(x)
    density = torch.exp(-0.5 * ((x - m) / std).square()) / (std * math.sqrt(2 * math.pi))
    chances = steps * density
    inside = mean
    if function.domain is not None and not function.flat:
        inside = torch.minimum(torch.maximum(mean, low.squeeze(-1)), high.squeeze(-1))
    centre = function.value(inside)
    apart, differences = x - m, values - centre.unsqueeze(-1)

    def expected(t: Tensor) -> Tensor:
        return (chances * t).sum(-1)

    total = chances.sum(-1).clamp_min(torch.finfo(mean.dtype).tiny)
    sums = [
        expected(t)
        for t in (apart, apart.square(), differences, differences.square(), differences * apart)
    ]
    if function.flat:
        for bound, side in ((low, -1.0), (high, 1.0)):
            part = _beyond(m, std, bound, side)
            change = (function.value(bound) - centre.unsqueeze(-1)).squeeze(-1)
            total = total + part[0]
            own = change.square() * part[0]
            added = (part[1], part[2], change * part[0], own, change * part[1])
            sums = [one + other for one, other in zip(sums, added, strict=True)]
    offset, square, shift, spread, joint = (t / total for t in sums)
    slope = (joint - shift * offset) / (square - offset.square())
    return Moments(centre + shift, slope, spread - shift.square())


def _beyond(mean: Tensor, std: Tensor, bound: Tensor, side: float) -> tuple[Tensor, ...]:
    """Of the part of a Gaussian beyond a bound: its probability, ``E[x - m; …]`` and ``E[(x - m)²; …]``."""
    z = side * (bound - mean) / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    tail = 0.5 * torch.erfc(z * math.sqrt(0.5))
    parts = tail, side * std * density, std.square() * (tail + z * density)
    return tuple(t.squeeze(-1) for t in parts)
