"""Functions with one kink at zero: ReLU, leaky ReLU, PReLU, the absolute value, one-sided clamps.

With slopes ``a`` on the left and ``b`` on the right, ``t = |m|/σ``, the slope ``n`` on the mean's own
side and the jump ``Δ`` to the other side's slope::

    E[f]   = f(m) + (b - a) σ I₁(t)
    E[f']  = n + Δ Q(t)
    Var[f] = v (n² + 2 n Δ Q(t) + Δ² (I₂(t) - I₁(t)²))

because ``f(x) = f(m) + n (x - m) + |Δ|·(what lies beyond the kink)`` and ``Cov(x, (−x)₊) = −v Q``.
For ``a = 0, b = 1`` this is the report's UAReLU with the sign of its variance corrected
(erratum 1); written this way nothing cancels, for any mean and any variance.

With the density ``p = φ(t)/σ`` at the kink, ``P = P(x > 0)``, ``M = E[x₊]`` and ``N = E[(−x)₊]`` the
derivatives by ``m`` and by ``v`` are, as ``∂E[g]/∂m = E[g']`` and ``∂E[g]/∂v = ½ E[g'']`` (Price 1958)::

    ∂E[f]   = (E[f'],  ½ (b - a) p)
    ∂E[f']  = ((b - a) p,  -½ (b - a) p m/v)
    ∂Var[f] = (2 (b - a) (b M (1 - P) + a N P),  a² (1 - P) + b² P - (b - a) p E[f])

Nothing cancels there either.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .kernel import Kernel
from .moments import Moments, standard, working_precision
from .subnormal import LIFT, normal, tame
from .tails import beyond, beyond_of_values, end_of

__all__ = ["absolute", "clamp_max", "clamp_min", "distance", "kinked", "leaky", "relu"]

_SQRT_2PI = math.sqrt(2 * math.pi)


def distance(mean: Tensor, var: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """``σ`` and ``t = |m|/σ``, at most where the tail is empty; neither has infinite gradients."""
    end = end_of(mean.dtype)
    some = var > 0
    std = torch.where(some, var, 1).sqrt()
    away = torch.where(positive, mean, -mean)
    t = torch.minimum(away, end * std) / std
    return torch.where(some, std, 0), torch.where(some, t, end)


def _kinked(mean: Tensor, var: Tensor, left: float | Tensor, right: float | Tensor) -> Moments:
    """Slope ``left`` for negative ``x``, slope ``right`` for positive ``x``."""
    positive = mean > 0
    std, t = distance(mean, var, positive)
    tail, first, spread = beyond(t)
    # as tensors: torch.where would take two numbers for float32
    left = torch.as_tensor(left, dtype=mean.dtype, device=mean.device)
    right = torch.as_tensor(right, dtype=mean.dtype, device=mean.device)
    near = torch.where(positive, right, left)
    jump = torch.where(positive, left, right) - near
    return Moments(
        near * mean + (right - left) * std * first,
        near + jump * tail,
        var.clamp_min(0) * (near * near + 2 * near * jump * tail + jump * jump * spread),
    )


def _kinked_gradient(
    mean: Tensor,
    var: Tensor,
    by_mean: Tensor,
    by_gain: Tensor | float,
    by_var: Tensor,
    left: float | Tensor,
    right: float | Tensor,
) -> tuple[Tensor, ...]:
    positive = mean > 0
    std, t = distance(mean, var, positive)
    tail, first, _ = beyond(t)
    some = torch.where(var > 0, var, 1)
    density = torch.where(first > 0, torch.exp(-0.5 * t * t) / _SQRT_2PI, 0) * some.rsqrt()
    short = std * first  # the smaller one of M and N
    above = torch.where(positive, mean, 0) + short
    below = torch.where(positive, 0, -mean) + short
    chance, other = torch.where(positive, 1 - tail, tail), torch.where(positive, tail, 1 - tail)
    jump = right - left
    value, slope = right * above - left * below, left * other + right * chance
    bend = jump * density
    return tame(
        by_mean * slope
        + by_gain * bend
        + by_var * 2 * jump * (right * above * other + left * below * chance),
        by_mean * 0.5 * bend
        - by_gain * 0.5 * bend * mean / some
        + by_var * (left * left * other + right * right * chance - bend * value),
    )


def _beyond(mean: Tensor, var: Tensor, on_right: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """What lies beyond a kink at zero, in few passes over memory and without gradients.

    Returns:
        New tensors: ``σ``, ``Q(t)``, ``I₁(t)``, ``I₂(t) - I₁(t)²``; and the mean's side, 1 or 0.
    """
    std = torch.threshold(var, 0.0, 0.0).sqrt_()
    # not 0/0: at zero variance t is infinite
    t = mean.abs().add_(torch.finfo(mean.dtype).tiny).div_(std)
    return std, *beyond_of_values(t), on_right(mean, 0, out=t)


def _kinked_values(
    mean: Tensor, var: Tensor, left: float | Tensor, right: float | Tensor
) -> Moments:
    """:func:`_kinked` without gradients."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _kinked(mean, var, left, right)
    std, tail, first, spread, side = _beyond(mean, var, torch.gt)
    lost = tail.addcmul_(side, tail, value=-2).mul_(right - left)  # Δ Q
    near = (1 - side).mul_(left).add_(side, alpha=right)
    spread.mul_((right - left) ** 2).addcmul_(near, near).addcmul_(near, lost, value=2)
    return Moments(
        torch.mul(near, mean).addcmul_(std, first, value=right - left),
        lost.add_(near),
        spread.mul_(var.clamp_min(0)),
    )


def _relu(mean: Tensor, var: Tensor) -> Moments:
    """:func:`_kinked` with fewer steps, for the slopes 0 and 1: ``n² + 2nΔQ`` is 0 or ``1 - 2Q``."""
    level, spread, tail = _relu_kept(mean, var)
    return Moments(level, tail + torch.where(mean > 0, 1 - 2 * tail, 0), spread)


def _relu_kept(mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    """Mean and variance of :func:`_relu`, and ``Q(t)``."""
    positive = mean > 0
    std, t = distance(mean, var, positive)
    tail, first, spread = beyond(t)
    level = torch.where(positive, mean, 0) + std * first
    surplus = torch.where(positive, 1 - 2 * tail, 0)
    return normal(level), normal((spread + surplus) * var.clamp_min(0)), tail


def _relu_slopes(
    mean: Tensor,
    var: Tensor,
    level: Tensor,
    spread: Tensor,
    tail: Tensor,
    by_mean: Tensor,
    by_var: Tensor,
) -> tuple[Tensor, ...]:
    """The gradient of mean and variance, given ``M = E[x₊]`` and ``Q(t)``."""
    # Chances and densities are multiplied by LIFT first. The product p M is left out where it is not worth a
    # digit of P: the square of a density is subnormal long before the others are.
    positive = mean > 0
    _, t = distance(mean, var, positive)
    inverse = torch.where(var > 0, var, 1).rsqrt()
    density = torch.where(tail > 0, torch.exp(-0.5 * t * t) * (LIFT / _SQRT_2PI), 0) * inverse
    near = torch.where(tail > torch.finfo(mean.dtype).eps ** 2, density, 0)
    tail = tail * LIFT
    chance = torch.where(positive, LIFT - tail, tail)
    other = torch.where(positive, tail, LIFT - tail)
    return tame(
        by_mean * chance + by_var * (2 * level * other),
        by_mean * (0.5 * density) + by_var * (chance - near * level),
        lift=LIFT,
    )


def _relu_gradient(
    mean: Tensor, var: Tensor, by_mean: Tensor, by_gain: Tensor | float, by_var: Tensor
) -> tuple[Tensor, ...]:
    return _kinked_gradient(mean, var, by_mean, by_gain, by_var, 0.0, 1.0)


def _relu_values(mean: Tensor, var: Tensor) -> Moments:
    """:func:`_relu` without gradients."""
    std, tail, first, spread, side = _beyond(mean, var, torch.gt)
    surplus = side.addcmul_(side, tail, value=-2)
    return Moments(
        mean.clamp_min(0).addcmul_(std, first),
        tail.add_(surplus),
        spread.add_(surplus).mul_(var.clamp_min(0)),
    )


def _clamp_min(mean: Tensor, var: Tensor, bound: float | Tensor) -> Moments:
    """A ReLU moved to ``bound``; like torch's clamp it has the slope 1 there."""
    above = mean >= bound
    std, t = distance(mean - bound, var, above)
    tail, first, spread = beyond(t)
    return Moments(
        torch.where(above, mean, bound).to(mean.dtype) + std * first,
        torch.where(above, 1 - tail, tail),
        var.clamp_min(0) * (torch.where(above, 1 - 2 * tail, 0) + spread),
    )


_KINKED = Kernel(_kinked, _kinked_gradient, _kinked_values)
relu = Kernel(_relu, _relu_gradient, _relu_values, _relu_kept, _relu_slopes)
"""``max(x, 0)``; the report's equations (19) and (20) with erratum 1 corrected."""
_CLAMP_MIN = Kernel(_clamp_min)


def kinked(mean: Tensor, var: Tensor, left: float | Tensor, right: float | Tensor) -> Moments:
    """Slope ``left`` for negative ``x``, slope ``right`` for positive ``x``."""
    return _KINKED(mean, var, left, right)


def leaky(mean: Tensor, var: Tensor, negative_slope: float | Tensor) -> Moments:
    """``x`` for positive ``x``, ``negative_slope · x`` otherwise; the slope may be a tensor."""
    return kinked(mean, var, negative_slope, 1.0)


@working_precision
def absolute(mean: Tensor, var: Tensor) -> Moments:
    """``|x|``, the folded normal distribution."""
    _, z = standard(mean, var)
    # 1 - 2Q(t) as an error function: it keeps its digits where the mean is small
    return kinked(mean, var, -1.0, 1.0)._replace(gain=torch.erf(z * math.sqrt(0.5)))


def clamp_min(mean: Tensor, var: Tensor, bound: float | Tensor) -> Moments:
    """``max(x, bound)``, a ReLU moved to ``bound``."""
    return _CLAMP_MIN(mean, var, bound)


def clamp_max(mean: Tensor, var: Tensor, bound: float | Tensor) -> Moments:
    """``min(x, bound) = -max(-x, -bound)``."""
    flipped = clamp_min(-mean, var, -bound)
    return Moments(-flipped.mean, flipped.gain, flipped.var)
