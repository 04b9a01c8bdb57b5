"""Wide noise through ``f(x) = x₊ + r(x)``, with an even ``r`` that lives on a few units around zero.

GELU and hard-swish are of this form. Where the noise is wider than ``r`` has features, its integrals
against the density are Gauss-Legendre sums with *fixed* nodes ``x_j`` and precomputed values of ``r``::

    E[r] = Σ_j w_j r(x_j) [p(x_j) + p(-x_j)],   p the density of x ~ N(m, v)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .moments import Moments
from .normal import SQRT_2PI
from .quadrature import legendre, tensors
from .widths import positive_part

__all__ = ["Node", "localised_moments", "tabulate"]


class Node(NamedTuple):
    """A quadrature node on the positive axis: position, weight, ``r`` and ``r'`` there."""

    position: float
    weight: float
    value: float
    slope: float


def tabulate(
    function: Callable[[float], tuple[float, float]], reach: float, count: int
) -> tuple[Node, ...]:
    """Nodes on ``[0, reach]`` with the values and slopes of ``r`` there."""
    return tuple(Node(reach * x, reach * w, *function(reach * x)) for x, w in legendre(count))


def localised_moments(mean: Tensor, var: Tensor, nodes: Sequence[Node]) -> Moments:
    """Moments for means that are not positive and noise wider than the features of ``r``."""
    tail, positive, positive2 = positive_part(mean, var)
    std = var.sqrt()
    z = (mean / std).unsqueeze(-1)
    positions, weights, values, slopes = tensors(nodes, mean)
    steps = positions / std.unsqueeze(-1)
    right = torch.exp(-0.5 * (steps - z) ** 2)
    left = torch.exp(-0.5 * (steps + z) ** 2)
    both = right + left
    value = both @ (weights * values)
    square = both @ (weights * values * values)
    product = right @ (weights * positions * values)
    slope = (right - left) @ (weights * slopes)
    scale = 1 / (SQRT_2PI * std)
    first = positive + scale * value
    second = positive2 + scale * (2 * product + square)
    return Moments(first, tail + scale * slope, second - first * first)
