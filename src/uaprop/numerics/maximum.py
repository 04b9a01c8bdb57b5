"""The larger of independent Gaussians, and of many: Clark's moments in a tournament.

``max(a, b) = h + (l - h)₊`` with ``h`` the one of larger mean. With ``D = l - h ~ N(d, v_a + v_b)``,
``d ≤ 0`` and ``P = P(D > 0) ≤ ½``, the first two moments are exact (Clark 1961)::

    E[max]   = m_h + E[D₊]          Var[max] = v_h (1 - 2P) + Var[D₊]

The winner is then treated as Gaussian in the next round. Rounds are balanced, so that equal inputs
are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .kernel import elementwise
from .moments import HALF, Moments, folded, untracked
from .rectified import distance, relu
from .tails import beyond

__all__ = ["Marginal", "larger", "larger_of_values", "sharp_union", "tournament"]

Marginal = tuple[Tensor, Tensor]


def sharp_union(
    positive_part: Callable[[Tensor, Tensor], Moments], a: Marginal, b: Marginal
) -> Marginal:
    """Moments of ``h + f(l - h)`` for a function ``f`` with ``f(x) = x + f(-x)``.

    ReLU gives the maximum, softplus the log-sum-exp. ``Cov(h, f(D)) = -v_h E[f'(D)]`` by Stein.

    Returns:
        Mean and variance, of the broadcast shape.
    """
    (mean_a, var_a), (mean_b, var_b) = a, b
    high = mean_a >= mean_b
    mean_h = torch.where(high, mean_a, mean_b)
    var_h = torch.where(high, var_a, var_b)
    gap = positive_part(folded(mean_a - mean_b, high), var_a + var_b)
    return mean_h + gap.mean, (var_h * (1 - 2 * gap.gain) + gap.var).clamp_min(0)


def larger_of_values(mean_a: Tensor, var_a: Tensor, mean_b: Tensor, var_b: Tensor) -> Marginal:
    """:func:`sharp_union` with ReLU, in fewer steps."""
    high = mean_a >= mean_b
    var = var_a + var_b
    std, t = distance(mean_a - mean_b, var, high)
    tail, first, spread = beyond(t)
    mean_h, var_h = torch.where(high, mean_a, mean_b), torch.where(high, var_a, var_b)
    return mean_h + std * first, (var_h * (1 - 2 * tail) + var * spread).clamp_min(0)


def larger(a: Marginal, b: Marginal) -> Marginal:
    """Mean and variance of the larger of two independent Gaussians."""
    dtype = a[0].dtype
    if dtype in HALF:
        wide = larger((a[0].float(), a[1].float()), (b[0].float(), b[1].float()))
        return wide[0].to(dtype), wide[1].to(dtype)
    if not untracked(*a, *b):
        return sharp_union(relu, a, b)  # which knows its gradient
    mean, var = elementwise(larger_of_values, *a, *b)
    return mean, var


def tournament(entrants: Sequence[Marginal]) -> Marginal:
    """Mean and variance of the largest of several independent Gaussians."""
    if len(entrants) == 1:
        return entrants[0]
    half = len(entrants) // 2
    return larger(tournament(entrants[:half]), tournament(entrants[half:]))
