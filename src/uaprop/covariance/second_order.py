"""What a nonlinearity or a product leaves beyond first order: products of two sources' factors."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ..kinds import Elementwise
from ..numerics.moments import Moments, root
from ..numerics.rectified import relu
from ..numerics.stacked import combined, residual_scale, squares, sum_of_squares
from .sources import Sources
from .stacked import across, expanded

__all__ = ["larger_in_loops", "partners", "second_order", "through", "through_in_loops"]

_DENSE = torch.contiguous_format
_PIECE = 2**20  # elements of a stack, which stay in the processor's cache


def through_in_loops(
    kind: Elementwise, loc: Tensor, values: Tensor, sources: Sources
) -> tuple[Moments, Tensor, Tensor]:
    """Pass through a scalar function in few passes over memory: one set of sources, and no derivatives.

    Returns:
        The moments, the factors, and what variance these lack where the input's factors cancel.
    """
    other = sources.partners()
    var, norm = squares(values, other)
    moments = kind.moments(loc, var)
    if moments.mean.shape != loc.shape:
        shape = moments.mean.shape
        values, var, norm = expanded(values, shape), var.expand(shape), norm.expand(shape)
    scale, lost = residual_scale(moments.var, moments.gain, var, norm)
    if bool(lost.any()):  # fourth powers that leave the range of the dtype
        factors, lost = _of_unit_variance(moments, var, values, other)
        return moments, factors, lost
    return moments, combined(values, other, moments.gain, scale), lost


def _of_unit_variance(
    moments: Moments, var: Tensor, values: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """The factors from products of factors that are divided by the standard deviation first.

    Returns:
        The factors, and what variance these lack where the input's factors cancel.
    """
    unit = values * _inverse_root(var)
    norm = squares(unit, other)[1]
    scale, lost = residual_scale(moments.var, moments.gain, var, norm)
    product = unit[other].mul_(unit).mul_(scale)
    return product.addcmul_(values, moments.gain), lost


def _inverse_root(var: Tensor) -> Tensor:
    """``1/√v``, and zero with a zero gradient at ``v = 0``."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1).rsqrt(), 0)


def larger_in_loops(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], sources: Sources
) -> tuple[Tensor, Tensor, Tensor] | None:
    """``max(a, b) = b + relu(a - b)`` in one pass over memory: one set of sources, and no derivatives.

    The mean is that of the larger one plus what the other adds: so minus infinity is a mean like others.

    Args:
        a: mean, and factors ``(sources, *shape)``.
        b: the same.
        sources: the sources.

    Returns:
        The mean, the chance that ``a`` is the larger one, and the factors; None if these would lack
        variance, where the factors of ``a - b`` cancel.
    """
    (m, p), (n, q) = a, b
    limit = torch.finfo(m.dtype).max / 4
    gap = (m - n).nan_to_num(0.0, limit, -limit)
    before = sources.generator.get_state()
    other = sources.partners()
    mean, gain, found = (torch.empty_like(t, memory_format=_DENSE) for t in (gap, gap, p))
    last = max(1, gap.ndim - 2)  # dimensions before these go together, also where windows are cut
    rest = gap.shape[last:]
    mine, yours, results = (t.reshape(len(t), -1, *rest) for t in (p, q, found))
    means, others, gaps, centres, gains = (t.reshape(-1, *rest) for t in (m, n, gap, mean, gain))
    size = max(1, _PIECE * len(gaps) // p.numel())
    for start in range(0, len(gaps), size):
        piece = slice(start, start + size)
        away = gaps[piece]
        apart = mine[:, piece] - yours[:, piece]
        var, norm = squares(apart, other)
        here = relu(away, var)
        scale, lost = residual_scale(here.var, here.gain, var, norm)
        if bool(lost.any()):
            sources.generator.set_state(before)  # whoever takes over makes the same choices
            return None
        torch.add(combined(apart, other, here.gain, scale), yours[:, piece], out=results[:, piece])
        beyond = here.mean - away.clamp_min(0)
        centres[piece] = torch.where(away > 0, means[piece], others[piece]) + beyond
        gains[piece] = here.gain
    return mean, gain, found


def through(
    kind: Elementwise, loc: Tensor, var: Tensor, values: Tensor, sources: tuple[Sources, ...]
) -> tuple[Moments, Tensor, Tensor]:
    """The same for any number of sets of sources, and differentiable."""
    moments = kind.moments(loc, var)
    if moments.mean.shape != loc.shape:
        values = expanded(values, moments.mean.shape)
        var = var.expand(moments.mean.shape)
    rest = (moments.var - moments.gain * (moments.gain * var)).clamp_min(0)
    product = _squares(values * _inverse_root(var), sources)
    norm = sum_of_squares(product)
    usable = norm > torch.finfo(norm.dtype).tiny
    scale = root(torch.where(usable, rest / torch.where(usable, norm, 1), 0))
    factors = torch.addcmul(product * scale, values, moments.gain)
    return moments, factors, torch.where(usable, 0, rest)


def partners(sources: tuple[Sources, ...]) -> Tensor:
    """For each source another one of its own set."""
    if len(sources) == 1:
        return sources[0].partners()
    starts = itertools.accumulate((part.count for part in sources), initial=0)
    return torch.cat(
        [part.partners() + start for part, start in zip(sources, starts, strict=False)]
    )


def _squares(values: Tensor, sources: tuple[Sources, ...]) -> Tensor:
    """The second order of ``x̃²`` up to a factor for each element."""
    if len(sources) == 1:
        return sources[0].products(values)
    return second_order(torch.mul, values, values, sources)


def second_order(
    product: Callable[[Tensor, Tensor], Tensor], p: Tensor, q: Tensor, sources: tuple[Sources, ...]
) -> Tensor:
    """``x̃ ỹ - Cov(x, y)`` as symmetrised products of two sources' factors.

    Every set of sources is paired with itself and with every other; partners in the larger of two sets
    stand for all pairs.

    Returns:
        Factors of the product's shape, with the right variance on average over the partners.
    """
    if len(sources) == 1:
        other = sources[0].partners()
        second = across(product, p, q[other]) + across(product, p[other], q)
        return second * (len(p) / 2) ** 0.5
    counts = [part.count for part in sources]
    ps, qs = p.split(counts), q.split(counts)
    parts = [second_order(product, a, b, (s,)) for a, b, s in zip(ps, qs, sources, strict=True)]
    for pair in itertools.combinations(range(len(sources)), 2):
        i, j = sorted(pair, key=lambda k: -counts[k])
        other = sources[i].partners_in(sources[j])
        cross = across(product, ps[i], qs[j][other]) + across(product, ps[j][other], qs[i])
        parts[i] = parts[i] + cross * counts[j] ** 0.5
    return torch.cat(parts)
