"""The linear response of a network as a control variate, with slopes that are estimated from samples.

``J``, the product of averaged local derivatives, is not the averaged derivative of the network: gates of
different layers are correlated. So ``Cov(J ε, f - J ε)`` is not zero, and leaving it out gives variances an
error that more samples do not cure. A control variate needs no ``J`` that is right, only one whose variance
``V = J Σ Jᵀ`` is known (Owen, *Monte Carlo theory, methods and examples*, section 8.9). With ``g = J ε``,

    f = (1 + b) g + D z + r

with regression coefficients ``b`` and ``D`` of ``f - g``, and directions ``z`` of the response that are
orthonormal in the noise's metric. The covariance of the first two terms is known, that of ``r`` is sampled.

The slopes ``b`` of an item's outputs are shrunk towards their average, the more the less they differ beyond
their sampling errors: outputs of one network share most of the error of its response. ``D`` is what each
output has beyond that, along the response of other outputs, which covariances need.

Coefficients that are noise would cost more than they mend. So the average and ``D`` are shrunk by
``(1 - a/z²)₊``, with the ratio ``z²`` of their square to their sampling variance and what Akaike's criterion
asks of a coefficient, ``a = 2 n/(n - k - 1)`` for ``k`` of them and ``n`` samples (Hurvich & Tsai 1989). That
is zero where the criterion would leave them out. With more samples it tends to one wherever there is
something to be found: the result is consistent whatever ``J`` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .linear_part import LinearPart, orthonormal
from .pooling import squared_overlaps

__all__ = ["Fit", "fitted"]

# Standard errors. Few samples want more of it, where pooling helps most, and many samples less.
_LIMIT = 1.5
_ROUNDING = torch.finfo(torch.float32).eps ** 2  # of what passes through a network, as a variance


class Fit(NamedTuple):
    """A response that fits the samples.

    Attributes:
        part: the response with its slopes.
        unexplained: what it leaves of the samples, ``(stack, batch, outputs)``.
        var_error: the standard error of the variances that it explains, ``(batch, outputs)``.
    """

    part: LinearPart
    unexplained: Tensor
    var_error: Tensor


def fitted(part: LinearPart, stacks: Sequence[Tensor | None], stack: Tensor) -> Fit:
    """Estimate the slopes of a response.

    Args:
        part: the response.
        stacks: noise of every input with the mean zero, ``(stack, *shape)``.
        stack: the outputs of the network for it, ``(stack, batch, outputs)``.

    Returns:
        The fit.
    """
    finite = torch.isfinite(stack).all(0)
    response = part.response(stacks)
    offsets = torch.where(finite, stack - stack.mean(0), 0).double()
    known = torch.where(finite, response, 0).double()
    # A response that is lost in the rounding of what varies has no slope.
    whole, square = offsets.square().sum(0), known.square().sum(0)
    usable = (square > _ROUNDING * whole) & (square > 0) & (part.variances() > 0)
    offsets, known = torch.where(usable, offsets, 0), torch.where(usable, known, 0)
    rounding = 16 * _ROUNDING * stack.double().square().mean(0)
    slopes, slope_error, single_error = _slopes(offsets - known, known, rounding)
    part = part.scaled(1 + slopes)
    rest = offsets - (1 + slopes) * known
    varies = usable & (rest.square().sum(0) > _ROUNDING * whole)
    weights, shrink = _cross(part, stacks, rest, varies)
    part = part.added(weights)
    mean_square = torch.lerp(slope_error, single_error, shrink)
    unexplained = stack - part.response(stacks)
    error = 2 * part.variances() * mean_square.sqrt().to(stack.dtype)
    return Fit(part, unexplained, error)


def _slopes(rest: Tensor, known: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The slope of each output, shrunk towards that of all outputs of its item.

    Args:
        rest: what the response leaves of the samples, ``(stack, batch, outputs)``.
        known: the response to their noise.
        rounding: the variance of what may be the outputs' rounding, ``(batch, outputs)``.

    Returns:
        The slopes, their mean squared error, and the sampling variance that they have without any shrinkage,
        all ``(batch, outputs)``.
    """
    count = len(rest)
    freedom = max(count - 2, 1)  # the samples have the mean zero
    square = known.square().sum(0)
    varies = square > 0
    square = torch.where(varies, square, 1)
    own = (rest * known).sum(0) / square
    residual = rest - own * known
    # What rounding leaves of an exactly linear output is no sample of anything.
    residual = torch.where(residual.square().sum(0) > freedom * rounding, residual, 0)
    # Variances of so few samples are themselves uncertain: a slope's error is that of Student's t. Exactly
    # linear outputs have no noise; what rounding leaves is taken for it.
    wide = freedom / max(freedom - 2, 1)
    parts = residual * known / square  # of each sample, whose sum the slope's error is
    single = residual.square().sum(0) / freedom / square
    single = wide * (single * _uneven(parts, single, varies, count)).clamp_min(_ROUNDING)
    # Those that are exactly linear know their slope, and say nothing of the others'.
    pooled = varies & (residual != 0).any(0)
    between = _between(own, single, _shared(parts, pooled), pooled)
    weights = torch.where(pooled, 1 / (single + between), 0)
    total = weights.sum(1, keepdim=True)
    weights = weights / torch.where(total > 0, total, 1)
    average = (weights * own).sum(1, keepdim=True)
    # Outputs are correlated: the variance of their average is that of the average of each sample's part.
    variance = (weights * parts).sum(-1).square().sum(0) * count / freedom
    variance = variance.unsqueeze(1).clamp_min(_ROUNDING)
    shrink = _shrinkage(average.square() / variance, count, torch.tensor(2, device=own.device))
    # What is left out may be as large as its error, so shrinkage makes that no smaller; and whether it is
    # left out is uncertain, too (Buckland, Burnham & Augustin 1997).
    of_average = wide * variance + shrink * (1 - shrink) * average.square()
    towards = single / (single + between)
    towards = torch.where(pooled, towards, 0)
    # No slope is moved by more than its own samples may be off: an output need not be like the others
    # (limited translation, Efron & Morris 1972).
    most = _LIMIT * single.sqrt()
    moved = (towards * (shrink * average - own)).clamp(-most, most)
    slopes = own + moved
    # What chance does not explain of the move may be an error, too.
    beyond = (moved.square() - single).clamp_min(0)
    error = (1 - towards) * single + towards.square() * of_average + beyond
    return (
        torch.where(varies, slopes, 0),
        torch.where(varies, error, 0),
        torch.where(varies, single, 0),
    )


def _uneven(parts: Tensor, single: Tensor, varies: Tensor, count: int) -> Tensor:
    """How many times larger the variance of a slope is than that of residuals that do not depend on ``g``.

    ``Var b = Σ (r g)²/(Σ g²)²`` (White 1980), which is ``Var(r)/Σ g²`` if the two are independent. Of one
    that is curved, ``r = g² - 1``, it is five times that. Few samples tell it roughly, and an item's outputs
    have it in common.

    Returns:
        The average ratio, at least 1, ``(batch, 1)``.
    """
    ratio = parts.square().sum(0) * count / max(count - 1, 1)
    ratio = torch.where(varies & (single > 0), ratio / torch.where(single > 0, single, 1), 0)
    return (ratio.sum(1, keepdim=True) / varies.sum(1, keepdim=True).clamp_min(1)).clamp_min(1)


def _shared(parts: Tensor, varies: Tensor) -> Tensor:
    """The sum of all ``ρ²`` of the errors of an item's slopes, each with itself too, ``(batch, 1)``."""
    size = parts.square().sum(0).sqrt()
    unit = parts / torch.where(size > 0, size, torch.inf)
    alone = (varies & (size == 0)).sum(1, keepdim=True)  # known exactly
    return squared_overlaps(unit.transpose(0, 1)).unsqueeze(-1) + alone


def _between(own: Tensor, single: Tensor, shared: Tensor, varies: Tensor) -> Tensor:
    """How much the slopes of an item's outputs differ beyond their sampling variances ``s²``.

    The sum ``Σ (b - b̄)²/(s² + τ²)``, with the average of these weights, is ``K - 1`` on average (Paule &
    Mandel 1982), with a variance of about ``2 Σ ρ²``. The result is the ``τ²`` for which it is one standard
    deviation more, by bisection: 0 if it is not so large without any.

    Returns:
        The variance, ``(batch, 1)``.
    """
    expected = varies.sum(1, keepdim=True) - 1 + (2 * shared).sqrt()

    def excess(variance: Tensor) -> Tensor:
        weights = torch.where(varies, 1 / (single + variance), 0)
        average = (weights * own).sum(1, keepdim=True)
        average = average / weights.sum(1, keepdim=True).clamp_min(torch.finfo(own.dtype).tiny)
        return (weights * (own - average).square()).sum(1, keepdim=True) - expected

    low = own.new_full(expected.shape, _ROUNDING)  # no slope is known better
    total = torch.where(varies, own, 0).square().sum(1, keepdim=True)
    high = torch.maximum(total, low)  # there the sum is at most 1
    needed = excess(torch.zeros_like(low)) > 0
    for _ in range(16):
        middle = (low * high).sqrt()
        above = excess(middle) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return torch.where(needed, (low * high).sqrt(), 0)


def _cross(
    part: LinearPart, stacks: Sequence[Tensor | None], rest: Tensor, varies: Tensor
) -> tuple[Tensor, Tensor]:
    """Regress what is left on the directions of the response, by least squares.

    ``z²`` of the coefficients is the F statistic: what they explain for each of them, over what they leave
    for each degree of freedom. Outputs count alike, each in units of its own variance.

    Returns:
        The shrunk coefficients, ``(batch, outputs, directions)``, and their shrinkage, ``(batch, 1)``.
    """
    count = len(rest)
    basis = orthonormal(part.rows, part.pushed) * varies.any(1).to(part.rows[0]).view(-1, 1, 1)
    directions = (basis != 0).any(1).sum(1, keepdim=True)
    freedom = (count - 1 - directions).clamp_min(0)
    if not bool((freedom > 1).any()):  # nothing can be told from noise
        zeros = rest.new_zeros(rest.shape[1], rest.shape[2], basis.shape[1])
        return zeros.to(basis.dtype), rest.new_zeros(rest.shape[1], 1)
    z = torch.einsum("rbp,bpq->brq", part.moved(stacks), basis).double()
    found = torch.linalg.pinv(z) @ rest.movedim(0, 1)
    square = torch.where(varies, rest.square().sum(0), torch.inf)
    explained = (z @ found).square().sum(1) / square
    explained = explained.sum(1, keepdim=True) / varies.sum(1, keepdim=True).clamp_min(1)
    left = (1 - explained).clamp_min(0)
    shrink = _shrinkage(explained * freedom / (left * directions), count, directions + 1)
    found = torch.where(varies.unsqueeze(1), found * shrink.unsqueeze(-1), 0)
    return found.mT.to(basis.dtype) @ basis.mT, shrink


def _shrinkage(ratio: Tensor, samples: int, coefficients: Tensor) -> Tensor:
    """``(1 - a/z²)₊`` with Akaike's price ``a`` of a coefficient; zero where there are too few samples."""
    price = 2 * samples / (samples - coefficients - 1).clamp_min(0)
    return (1 - price.to(ratio) / ratio).clamp_min(0).nan_to_num(0)
