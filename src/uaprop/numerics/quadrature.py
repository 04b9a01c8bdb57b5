"""Quadrature rules as plain numbers, computed once.

Gauss-Hermite rules are for a function smooth on the scale of the noise, Gauss-Legendre rules for a
noise density smooth on the scale of the function.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

__all__ = ["hermite", "legendre"]


def _golub_welsch(off_diagonal: Tensor, mass: float) -> list[tuple[float, float]]:
    """Nodes and weights from the recurrence coefficients (Golub & Welsch 1969)."""
    matrix = torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    nodes, vectors = torch.linalg.eigh(matrix)
    weights = mass * vectors[0].square()
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


@functools.cache
def hermite(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights with ``E[g(u)] ≈ Σ w g(node)`` for ``u ~ N(0, 1)``; weights sum to 1."""
    n = torch.arange(1, count, dtype=torch.float64)
    rule = _golub_welsch(n.sqrt(), 1.0)
    return tuple((_polish_hermite(x, count), w) for x, w in rule)


def _polish_hermite(x: float, count: int) -> float:
    """One Newton step on the orthonormal Hermite polynomial, to the last digit."""
    previous, current = 0.0, 1.0
    for n in range(count):
        previous, current = current, (x * current - math.sqrt(n) * previous) / math.sqrt(n + 1)
    return x - current / (math.sqrt(count) * previous)


@functools.cache
def legendre(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights on ``[0, 1]``; weights sum to 1."""
    n = torch.arange(1, count, dtype=torch.float64)
    rule = _golub_welsch(n / (4 * n * n - 1).sqrt(), 2.0)
    return tuple(((1 + x) / 2, w / 2) for x, w in rule)
