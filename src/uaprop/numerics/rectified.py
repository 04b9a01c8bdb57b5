"""Functions with one kink at zero: ReLU, leaky ReLU, PReLU, the absolute value, one-sided clamps.

With slopes ``a`` on the left and ``b`` on the right, ``t = |m|/σ``, the slope ``n`` on the mean's own
side and the jump ``Δ`` to the other side's slope::

    E[f]   = f(m) + (b - a) σ I₁(t)
    E[f']  = n + Δ Q(t)
    Var[f] = v (n² + 2 n Δ Q(t) + Δ² (I₂(t) - I₁(t)²))

because ``f(x) = f(m) + n (x - m) + |Δ|·(what lies beyond the kink)`` and ``Cov(x, (−x)₊) = −v Q``.
For ``a = 0, b = 1`` this is the report's UAReLU with the sign of its variance corrected
(erratum 1); written this way nothing cancels, for any mean and any variance.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from .moments import (
    MomentFunction,
    Moments,
    folded,
    in_chunks,
    standard,
    untracked,
    working_precision,
)
from .normal import upper_partial_moments
from .tails import partial_moments

_CHUNK = 2**15  # elements for each thread

__all__ = ["absolute", "clamp_max", "clamp_min", "kinked", "leaky", "relu"]


def kinked(mean: Tensor, var: Tensor, left: float | Tensor, right: float | Tensor) -> Moments:
    """Slope ``left`` for negative ``x``, slope ``right`` for positive ``x``."""
    if not isinstance(left, Tensor) and not isinstance(right, Tensor) and _are_values(mean, var):
        return _by_chunk(functools.partial(_kinked_values, left=left, right=right), mean, var)
    std, z = standard(mean, var)
    positive = mean > 0
    tail, first, second = upper_partial_moments(-folded(z, positive))
    # as tensors: torch.where would take two numbers for float32
    left = torch.as_tensor(left, dtype=mean.dtype, device=mean.device)
    right = torch.as_tensor(right, dtype=mean.dtype, device=mean.device)
    near = torch.where(positive, right, left)
    jump = torch.where(positive, left, right) - near
    return Moments(
        near * mean + (right - left) * std * first,
        near + jump * tail,
        var * (near * near + 2 * near * jump * tail + jump * jump * (second - first * first)),
    )


def _are_values(mean: Tensor, var: Tensor) -> bool:
    return untracked(mean, var) and (mean.shape, mean.dtype) == (var.shape, var.dtype)


def _by_chunk(function: MomentFunction, mean: Tensor, var: Tensor) -> Moments:
    """In pieces that stay in the cache, into place: to allocate memory costs more than to compute."""
    size = _CHUNK * torch.get_num_threads()
    if mean.numel() <= size:
        return function(mean, var)
    result = Moments(*(mean.new_empty(mean.shape) for _ in Moments._fields))
    flat = (t.reshape(-1).split(size) for t in (mean, var, *result))
    for m, v, *places in zip(*flat, strict=True):
        for place, values in zip(places, function(m, v), strict=True):
            place.copy_(values)
    return result


def _beyond(mean: Tensor, var: Tensor, on_right: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """What lies beyond a kink at zero, in few passes over memory and without gradients.

    Returns:
        New tensors: ``σ``, ``Q(t)``, ``I₁(t)``, ``I₂(t) - I₁(t)²``; and the mean's side, 1 or 0.
    """
    std = torch.threshold(var, 0.0, 0.0).sqrt_()
    # not 0/0: at zero variance t is infinite
    t = mean.abs().add_(torch.finfo(mean.dtype).tiny).div_(std)
    tail, first, second = partial_moments(t)
    return std, tail, first, second.addcmul_(first, first, value=-1), on_right(mean, 0, out=t)


def _kinked_values(mean: Tensor, var: Tensor, left: float, right: float) -> Moments:
    """:func:`kinked` without gradients."""
    std, tail, first, spread, side = _beyond(mean, var, torch.gt)
    lost = tail.addcmul_(side, tail, value=-2).mul_(right - left)  # Δ Q
    near = (1 - side).mul_(left).add_(side, alpha=right)
    spread.mul_((right - left) ** 2).addcmul_(near, near).addcmul_(near, lost, value=2)
    return Moments(
        torch.mul(near, mean).addcmul_(std, first, value=right - left),
        lost.add_(near),
        spread.mul_(var),
    )


def _relu_values(mean: Tensor, var: Tensor) -> Moments:
    return _above(mean.clamp_min(0), var, _beyond(mean, var, torch.gt))


def _clamp_min_values(mean: Tensor, var: Tensor, bound: float) -> Moments:
    return _above(mean.clamp_min(bound), var, _beyond(mean - bound, var, torch.ge))


def _above(floor: Tensor, var: Tensor, beyond: tuple[Tensor, ...]) -> Moments:
    """:func:`_kinked_values` with fewer steps, for the slopes 0 and 1: ``n² + 2nΔQ`` is 0 or ``1 - 2Q``."""
    std, tail, first, spread, side = beyond
    surplus = side.addcmul_(side, tail, value=-2)
    return Moments(floor.addcmul_(std, first), tail.add_(surplus), spread.add_(surplus).mul_(var))


@working_precision
def relu(mean: Tensor, var: Tensor) -> Moments:
    """``max(x, 0)``; the report's equations (19) and (20) with erratum 1 corrected."""
    mean, var = torch.broadcast_tensors(mean, var)
    if _are_values(mean, var):
        return _by_chunk(_relu_values, mean, var)
    return in_chunks(lambda m, v: kinked(m, v, 0.0, 1.0), mean, var, size=_CHUNK)


@working_precision
def leaky(mean: Tensor, var: Tensor, negative_slope: float | Tensor) -> Moments:
    """``x`` for positive ``x``, ``negative_slope · x`` otherwise; the slope may be a tensor."""
    return kinked(mean, var, negative_slope, 1.0)


@working_precision
def absolute(mean: Tensor, var: Tensor) -> Moments:
    """``|x|``, the folded normal distribution."""
    _, z = standard(mean, var)
    # 1 - 2Q(t) as an error function: it keeps its digits where the mean is small
    return kinked(mean, var, -1.0, 1.0)._replace(gain=torch.erf(z * math.sqrt(0.5)))


@working_precision
def clamp_min(mean: Tensor, var: Tensor, bound: float | Tensor) -> Moments:
    """``max(x, bound)``, a ReLU moved to ``bound``."""
    if not isinstance(bound, Tensor) and _are_values(mean, var):
        return _by_chunk(functools.partial(_clamp_min_values, bound=bound), mean, var)
    std, z = standard(mean - bound, var)
    above = mean >= bound
    t = -folded(z, above)
    t = torch.where(t < 0, -t, t)  # at the bound without variance
    tail, first, second = upper_partial_moments(t)
    return Moments(
        torch.where(above, mean, bound).to(mean.dtype) + std * first,
        torch.where(above, 1 - tail, tail),
        var * (torch.where(above, 1 - 2 * tail, 0.0) + second - first * first),
    )


@working_precision
def clamp_max(mean: Tensor, var: Tensor, bound: float | Tensor) -> Moments:
    """``min(x, bound) = -max(-x, -bound)``."""
    flipped = clamp_min(-mean, var, -bound)
    return Moments(-flipped.mean, flipped.gain, flipped.var)
