"""The linear response of a network as a control variate, with slopes that are estimated from samples.

``J``, the product of averaged local derivatives, is not the averaged derivative of the network: gates of
different layers are correlated. So ``Cov(J ε, f - J ε)`` is not zero, and leaving it out gives variances an
error that more samples do not cure. A control variate needs no ``J`` that is right, only one whose variance
``V = J Σ Jᵀ`` is known (Owen, *Monte Carlo theory, methods and examples*, section 8.9). With ``g = J ε``,

    f = (1 + b) g + D z + r

with regression coefficients ``b`` and ``D`` of ``f - g``, and directions ``z`` of the response that are
orthonormal in the noise's metric. The covariance of the first two terms is known, that of ``r`` is sampled.

``b`` is one slope for all outputs of an item, the average of their own ones weighted by their accuracy:
outputs of one network share most of the error of its response. ``D`` is what each output has beyond that,
of its own slope and along the response of other outputs, which covariances need.

Coefficients that are noise would cost more than they mend. So both are shrunk by ``(1 - a/z²)₊``, with the
ratio ``z²`` of their square to their sampling variance and what Akaike's criterion asks of a coefficient,
``a = 2 n/(n - k - 1)`` for ``k`` of them and ``n`` samples (Hurvich & Tsai 1989). That is zero where the
criterion would leave them out. With more samples it tends to one wherever there is something to be found:
the result is consistent whatever ``J`` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .linear_part import LinearPart, orthonormal

__all__ = ["Fit", "fitted"]


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
    count = len(stack)
    usable = torch.isfinite(stack).all(0) & (part.variances() > 0)
    response = part.response(stacks)
    offsets = torch.where(usable, stack - stack.mean(0), 0).double()
    known = torch.where(usable, response, 0).double()
    slope, slope_error, single_error = _slope(offsets - known, known, count)
    part = part.scaled(1 + slope)
    rest = offsets - (1 + slope) * known
    weights, shrink = _cross(part, stacks, rest, usable)
    part = part.added(torch.where(usable.unsqueeze(-1), weights, 0))
    mean_square = torch.lerp(slope_error.expand_as(single_error), single_error, shrink)
    unexplained = stack - part.response(stacks)
    error = 2 * part.variances() * mean_square.sqrt().to(stack.dtype)
    return Fit(part, unexplained, error)


def _slope(rest: Tensor, known: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """One slope for all outputs of an item.

    Returns:
        The shrunk slope and its mean squared error, ``(batch, 1)``; and the sampling variance of
        each output's own slope, ``(batch, outputs)``.
    """
    freedom = max(count - 2, 1)  # the samples have the mean zero
    square = known.square().sum(0)
    varies = square > 0
    square = torch.where(varies, square, 1)
    own = (rest * known).sum(0) / square
    residual = rest - own * known
    noise = residual.square().sum(0) / freedom
    single = noise / square
    # Exactly linear outputs have no noise: what rounding leaves is taken for it.
    rounding = torch.finfo(torch.float32).eps ** 2
    single = single.clamp_min(rounding)
    weights = torch.where(varies, 1 / single, 0)
    total = weights.sum(1, keepdim=True)
    weights = weights / torch.where(total > 0, total, 1)
    slope = (weights * own).sum(1, keepdim=True)
    # Outputs are correlated: the variance of their average is that of the average of each sample's part.
    parts = (weights / square * residual * known).sum(-1)
    variance = (parts.square().sum(0) * count / freedom).unsqueeze(1).clamp_min(rounding)
    shrink = _shrinkage(slope.square() / variance, count, torch.tensor(2, device=slope.device))
    # What is left out may be as large as its error, so shrinkage makes that no smaller; and whether it is
    # left out is uncertain, too (Buckland, Burnham & Augustin 1997). Variances of so few samples are
    # themselves uncertain: that of Student's t.
    wide = freedom / max(freedom - 2, 1)
    error = wide * variance + shrink * (1 - shrink) * slope.square()
    return slope * shrink, error, torch.where(varies, wide * single, 0)


def _cross(
    part: LinearPart, stacks: Sequence[Tensor | None], rest: Tensor, usable: Tensor
) -> tuple[Tensor, Tensor]:
    """Regress what is left on the directions of the response, by least squares.

    ``z²`` of the coefficients is the F statistic: what they explain for each of them, over what they leave
    for each degree of freedom. Outputs count alike, each in units of its own variance.

    Returns:
        The shrunk coefficients, ``(batch, outputs, directions)``, and their shrinkage, ``(batch, 1)``.
    """
    count = len(rest)
    basis = orthonormal(part.rows, part.pushed)
    directions = (basis != 0).any(1).sum(1, keepdim=True)
    freedom = count - 1 - directions
    if not bool((freedom > 1).any()):  # nothing can be told from noise
        zeros = rest.new_zeros(rest.shape[1], rest.shape[2], basis.shape[1])
        return zeros.to(basis.dtype), rest.new_zeros(rest.shape[1], 1)
    z = torch.einsum("rbp,bpq->brq", part.moved(stacks), basis).double()
    found = torch.linalg.pinv(z) @ rest.movedim(0, 1)
    square = rest.square().sum(0)
    varies = usable & (square > 0)
    explained = (z @ found).square().sum(1) / torch.where(varies, square, torch.inf)
    explained = explained.sum(1, keepdim=True) / varies.sum(1, keepdim=True).clamp_min(1)
    left = (1 - explained).clamp_min(0)
    shrink = _shrinkage(explained * freedom / (left * directions), count, directions + 1)
    coefficients = (shrink.unsqueeze(-1) * found.mT).to(basis.dtype) @ basis.mT
    return coefficients, shrink


def _shrinkage(ratio: Tensor, samples: int, coefficients: Tensor) -> Tensor:
    """``(1 - a/z²)₊`` with Akaike's price ``a`` of a coefficient; zero where there are too few samples."""
    price = 2 * samples / (samples - coefficients - 1).clamp_min(0)
    return (1 - price.to(ratio) / ratio).clamp_min(0).nan_to_num(0)
