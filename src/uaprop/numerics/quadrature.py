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


def _golub_welsch(off_diagonal: Tensor, mass: float) -> list[tuple[float, float]]:
    """Nodes and weights from the recurrence coefficients (Golub & Welsch 1969)."""
    matrix = torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    nodes, vectors = torch.linalg.eigh(matrix)
    weights = mass * vectors[0].square()
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


@functools.cache
def hermite(count: int) -> Rule:
    """Nodes and weights with ``E[g(u)] ≈ Σ w g(node)`` for ``u ~ N(0, 1)``; weights sum to 1."""
    n = torch.arange(1, count, dtype=torch.float64)
    return tuple(_polished(x, count) for x, _ in _golub_welsch(n.sqrt(), 1.0))


def _polished(x: float, count: int) -> tuple[float, float]:
    """A node after one Newton step, and its weight ``1/Σ h_k(x)²`` with all digits.

    ``h_k`` are the orthonormal Hermite polynomials.

    Returns:
        Node and weight.
    """
    for step in range(2):
        values = [0.0, 1.0]
        for n in range(count):
            values.append((x * values[-1] - math.sqrt(n) * values[-2]) / math.sqrt(n + 1))
        if step == 0:
            x -= values[-1] / (math.sqrt(count) * values[-2])
    return x, 1 / sum(value * value for value in values[1:-1])


@functools.cache
def legendre(count: int) -> Rule:
    """Nodes and weights on ``[0, 1]``; weights sum to 1."""
    n = torch.arange(1, count, dtype=torch.float64)
    rule = _golub_welsch(n / (4 * n * n - 1).sqrt(), 2.0)
    return tuple(((1 + x) / 2, w / 2) for x, w in rule)


def tensors(rule: Sequence[tuple[float, ...]], like: Tensor) -> list[Tensor]:
    """A rule's columns (nodes, weights, …) as vectors in the dtype and on the device of ``like``."""
    return list(torch.tensor(rule, dtype=like.dtype, device=like.device).unbind(1))
