"""A vector over a power of its own sum of squares, by an integral over exponential tilts.

For ``s = ε + a Σ c_j²`` with ``t = τ²``::

    s^p = 2/Γ(-p) ∫ τ^{-2p-1} e^{-τ² s} dτ,        p < 0

and under the weight ``e^{-t s}`` a Gaussian vector stays Gaussian. With ``h = 1/(1 + 2 a t v)``, for
independent elements of means ``m`` and variances ``v`` (``w`` is the total weight)::

    c = x             w = e^{-tε} Π √h e^{-a t Σ h m²}                    mean  h m          variance  v h
    c = x - mean(x)   w = e^{-tε} Π √h/√κ e^{-a t Σ h (m - m̄)²}           mean  h (m - m̄)    variance  below
                      κ = mean(h),  m̄ = mean(h m)/κ,   v h - (v h (1 + h) - mean(v h))/(n κ)

where the centred variance is that of ``C (1 + 2 a t C)⁻¹`` with ``C = A V A``, ``A = 1 - 11ᵀ/n``. So the
first two moments of ``c_i s^p`` are integrals of one variable, whatever the means and variances, and each
has the weights of its own power. The trapezoidal rule in ``y`` with ``τ = τ₀ exp(y - e^{-y})`` converges
exponentially; its nodes reach over three decades of scales, beyond which variances may still differ.

All terms are positive, but a variance is the difference of two moments. Where it is too small a part of the
second moment for that, :mod:`~uaprop.numerics.normalised` has another formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Tilts", "integral", "moments", "of_rows", "of_windows", "weights", "working_dtype"]

_FIRST, _LAST, _COUNT = (
    -2.9,
    7.5,
    56,
)  # of y: to 1e-8 of a moment, where variances differ by four decades
_SINGLE = ("mps",)  # devices without float64


def working_dtype(like: Tensor) -> torch.dtype:
    """What to integrate in: a variance is a small difference of two moments."""
    return like.dtype if like.device.type in _SINGLE else torch.float64


class Tilts(NamedTuple):
    """The vector under each weight; the nodes are the first dimension.

    Attributes:
        node: ``τ``.
        log_weight: ``log w``, and the step of the rule in ``log τ``.
        mean: means of ``c``.
        var: variances of ``c``.
    """

    node: Tensor
    log_weight: Tensor
    mean: Tensor
    var: Tensor


def _nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """``log τ/τ₀`` and the logarithm of the step, each ``(nodes, 1, …)``."""
    step = (_LAST - _FIRST) / (_COUNT - 1)
    places = [_FIRST + step * k for k in range(_COUNT)]
    where = [y - math.exp(-y) for y in places]
    steps = [math.log(step * (1 + math.exp(-y))) for y in places]
    table = torch.tensor([where, steps], dtype=like.dtype, device=like.device)
    first, second = table.view(2, _COUNT, *[1] * like.ndim).unbind()
    return first, second


def of_rows(mean: Tensor, var: Tensor, eps: Tensor | float, centred: bool) -> Tilts:
    """For ``s = ε + mean(c²)`` over the last dimension, of about unit size."""
    n = mean.shape[-1]
    place, steps = _nodes(mean)
    node = torch.exp(place)
    t = node.square()
    h = 1 / (1 + 2 / n * t * var)
    log_weight = steps - t * eps + 0.5 * torch.log(h).sum(-1, keepdim=True)
    shrunk = var * h
    if not centred:
        log_weight = log_weight - t * (h * mean.square()).mean(-1, keepdim=True)
        return Tilts(node, log_weight, h * mean, shrunk)
    level = h.mean(-1, keepdim=True)
    away = mean - (h * mean).mean(-1, keepdim=True) / level
    log_weight = log_weight - 0.5 * torch.log(level)
    log_weight = log_weight - t * (h * away.square()).mean(-1, keepdim=True)
    own = shrunk - (shrunk * (1 + h) - shrunk.mean(-1, keepdim=True)) / (n * level)
    return Tilts(node, log_weight, h * away, own)


def of_windows(
    mean: Tensor,
    var: Tensor,
    total: Tensor,
    share: float,
    eps: float,
    sums: Callable[[Tensor], Tensor],
) -> Tilts:
    """For ``s = ε + share · Σ c²`` over windows along the second dimension.

    Args:
        mean: means of ``c``, ``(batch, channels, …)``.
        var: variances of ``c``.
        total: ``E[s]``, of which the nodes are multiples.
        share: the coefficient of the sum.
        eps: ε.
        sums: from a tensor ``(batch, channels, …)`` to its sums over windows.

    Returns:
        The tilts.
    """
    place, steps = _nodes(mean)
    node = torch.exp(place) * total.detach().amax(1, keepdim=True).rsqrt()  # one for all windows
    t = node.square()
    h = 1 / (1 + 2 * share * t * var)
    exponent = 0.5 * torch.log(h) - share * t * h * mean.square()
    log_weight = steps - t * eps + sums(exponent.flatten(0, 1)).view_as(exponent)
    return Tilts(node, log_weight, h * mean, h * var)


def weights(tilts: Tilts, exponent: float) -> Tensor:
    """Of each node, in an integral with ``s^p``."""
    constant = math.log(2) - math.lgamma(-exponent)
    return torch.exp(tilts.log_weight - 2 * exponent * torch.log(tilts.node) + constant)


def integral(tilts: Tilts, values: Tensor, exponent: float) -> Tensor:
    """``E[g(c) s^p]`` from the means of ``g(c)`` under each weight; without the nodes' dimension."""
    return (weights(tilts, exponent) * values).sum(0)


def moments(tilts: Tilts, exponent: float = -0.5) -> tuple[Tensor, Tensor]:
    """``E[c s^p]`` and ``E[c² s^{2p}]``."""
    second = tilts.mean.square() + tilts.var
    return integral(tilts, tilts.mean, exponent), integral(tilts, second, 2 * exponent)
