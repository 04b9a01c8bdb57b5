"""Moments of a function that is smooth on the scale of the noise.

Two regimes, for a smooth ``f``:

* very small σ: the expansion ``E[f] = f + ½ f⁽²⁾ v + ⅛ f⁽⁴⁾ v²``, ``E[f'] = f' + ½ f⁽³⁾ v``,
  ``Var[f] = f'² v + (½ f⁽²⁾² + f' f⁽³⁾) v²``, whose gradients are finite at ``v = 0``;
* larger σ: Gauss-Hermite quadrature of the *difference* ``f(m + σu) - f(m)``, so that a small variance
  is not the difference of large numbers. Its error decays like ``exp(-2 p √n / σ)`` with ``p`` the
  distance of f's nearest singularity from the real axis; callers use it for σ up to about 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .kernel import evaluate
from .moments import Moments, piecewise, untracked
from .quadrature import Rule, hermite, tensors

__all__ = ["Jet", "smooth_moments"]

Pair = Callable[[Tensor], tuple[Tensor, Tensor]]


class Jet(NamedTuple):
    """A function's value and its first four derivatives at a point."""

    value: Tensor
    first: Tensor
    second: Tensor
    third: Tensor
    fourth: Tensor


# dtype: (σ below which the expansion is used, the Gauss-Hermite rule above it)
_REGIMES = {torch.float64: (1e-3, hermite(28)), torch.float32: (2e-2, hermite(20))}


def smooth_moments(
    jet: Callable[[Tensor], Jet],
    pair: Pair,
    mean: Tensor,
    var: Tensor,
) -> Moments:
    """Moments for noise below f's own scale.

    Args:
        jet: the function's value and four derivatives.
        pair: the function's value and first derivative only, for the quadrature.
        mean: means of the input.
        var: variances of the input, of the same shape.

    Returns:
        The moments, of the same shape.
    """
    threshold, rule = _REGIMES[mean.dtype]

    def expansion(m: Tensor, v: Tensor) -> Moments:
        f, f1, f2, f3, f4 = jet(m)
        return Moments(
            f + v * (0.5 * f2 + 0.125 * v * f4),
            f1 + 0.5 * v * f3,
            v * (f1 * f1 + v * (0.5 * f2 * f2 + f1 * f3)),
        )

    def at_once(m: Tensor, v: Tensor) -> Moments:
        nodes, weights = tensors(rule, m)
        centre, _ = pair(m)
        values, slopes = pair(m.unsqueeze(-1) + v.sqrt().unsqueeze(-1) * nodes)
        differences = values - centre.unsqueeze(-1)
        first = differences @ weights
        return Moments(
            centre + first, slopes @ weights, differences.square() @ weights - first * first
        )

    def quadrature(m: Tensor, v: Tensor) -> Moments:
        if not untracked(m, v):
            return at_once(m, v)
        return Moments(*evaluate(_by_node(pair, rule), (m, v), (), at_once))

    return piecewise(
        var < threshold**2, expansion, quadrature, mean, var, safe=((0.0, 0.0), (0.0, 1.0))
    )


@functools.cache
def _by_node(pair: Pair, rule: Rule) -> Callable[..., tuple[Tensor, ...]]:
    """The quadrature one node after the other, for a compiled loop: nothing is larger than the input."""

    def quadrature(m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        std = v.sqrt()
        centre, _ = pair(m)
        first = second = gain = torch.zeros_like(m)
        for node, weight in rule:
            value, slope = pair(m + std * node)
            difference = value - centre
            first = first + weight * difference
            second = second + weight * difference * difference
            gain = gain + weight * slope
        return centre + first, gain, second - first * first

    quadrature.__name__ = pair.__name__  # what it is called when compiled
    quadrature.__module__ = pair.__module__
    return quadrature
