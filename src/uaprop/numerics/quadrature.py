"""Quadrature rules as plain numbers, computed once.

Gauss-Hermite rules are for a function smooth on the scale of the noise, Gauss-Legendre rules for a
noise density smooth on the scale of the function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Rule", "hermite", "legendre", "tensors"]

Rule = tuple[tuple[float, float], ...]


@functools.cache
def hermite(count: int) -> Rule:
    """Nodes and weights with ``E[g(u)] ≈ Σ w g(node)`` for ``u ~ N(0, 1)``; weights sum to 1."""
    return _mirrored([_hermite(_hermite_guess(k, count), count) for k in _halves(count)], count)


@functools.cache
def legendre(count: int) -> Rule:
    """Nodes and weights on ``[0, 1]``; weights sum to 1."""
    guesses = (math.cos(math.pi * (4 * k - 1) / (4 * count + 2)) for k in _halves(count))
    rule = _mirrored([_legendre(x, count) for x in guesses], count)
    return tuple(((1 + x) / 2, w / 2) for x, w in rule)


_STEPS = 4  # of Newton, each of which doubles the digits; the guesses have two


def _halves(count: int) -> range:
    """Numbers of the nodes that are not negative, from the largest."""
    return range(1, (count + 1) // 2 + 1)


def _mirrored(upper: list[tuple[float, float]], count: int) -> Rule:
    """All nodes in rising order, from those that are not negative in falling order; 0 is one's own mirror."""
    if count % 2:
        upper[-1] = (0.0, upper[-1][1])
    lower = upper[:-1] if count % 2 else upper
    return (*((-x, w) for x, w in lower), *reversed(upper))


def _hermite_guess(k: int, count: int) -> float:
    """Where a wave in the potential ``x²`` has its ``k``-th node, counted from the edge at ``√(2n+1)``.

    With ``x = √(2n+1) cos θ`` the phase from there is ``(2θ - sin 2θ)(2n+1)/4``, and to be ``π (k - ¼)``.

    Returns:
        The node for a density ``e^{-u²/2}``.
    """
    phase = math.pi * (4 * k - 1) / (2 * count + 1)
    angle = (0.75 * phase) ** (1 / 3)
    for _ in range(_STEPS):
        angle -= (2 * angle - math.sin(2 * angle) - phase) / (2 - 2 * math.cos(2 * angle))
    return math.sqrt(4 * count + 2) * math.cos(angle)


def _hermite(x: float, count: int) -> tuple[float, float]:
    """The node near ``x``, and its weight ``1/Σ h_k(x)²``, with ``h_k`` the orthonormal polynomials."""
    roots = [math.sqrt(n) for n in range(count + 1)]
    for step in range(_STEPS + 1):
        values = [0.0, 1.0]
        for n in range(count):
            values.append((x * values[-1] - roots[n] * values[-2]) / roots[n + 1])
        if step < _STEPS:
            x -= values[-1] / (roots[count] * values[-2])  # h_n' = √n h_{n-1}
    return x, 1 / sum(value * value for value in values[1:-1])


def _legendre(x: float, count: int) -> tuple[float, float]:
    """The node near ``x`` on ``[-1, 1]``, and its weight ``2/((1-x²) P_n'(x)²)``."""
    for step in range(_STEPS + 1):
        before, value = 0.0, 1.0
        for n in range(count):
            before, value = value, ((2 * n + 1) * x * value - n * before) / (n + 1)
        slope = count * (before - x * value) / (1 - x * x)
        if step < _STEPS:
            x -= value / slope
    return x, 2 / ((1 - x * x) * slope * slope)


def tensors(rule: Sequence[tuple[float, ...]], like: Tensor) -> list[Tensor]:
    """A rule's columns (nodes, weights, …) as vectors in the dtype and on the device of ``like``."""
    return list(torch.tensor(rule, dtype=like.dtype, device=like.device).unbind(1))
