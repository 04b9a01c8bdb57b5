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
    return moments, combined(values, other, moments.gain, scale), lost


def larger_in_loops(
    gap: Tensor, p: Tensor, q: Tensor, sources: Sources
) -> tuple[Moments, Tensor] | None:
    """``b + relu(a - b)`` in one pass over memory: one set of sources, and no derivatives.

    Args:
        gap: the mean of ``a - b``.
        p: factors of ``a``, ``(sources, *shape)``.
        q: factors of ``b``.
        sources: the sources.

    Returns:
        The moments of ``relu(a - b)``, and the factors of the larger one; None if these would lack
        variance, where the factors of ``a - b`` cancel.
    """
    before = sources.generator.get_state()
    other = sources.partners()
    found = torch.empty(p.shape, dtype=p.dtype, device=p.device)
    moments = Moments(*(torch.empty(gap.shape, dtype=gap.dtype, device=gap.device) for _ in "123"))
    last = max(1, gap.ndim - 2)  # dimensions before these go together, also where windows are cut
    planes = [t.reshape(len(t), -1, *gap.shape[last:]) for t in (p, q, found)]
    means, *parts = (t.reshape(-1, *gap.shape[last:]) for t in (gap, *moments))
    size = max(1, _PIECE * len(means) // max(1, p.numel()))
    for start in range(0, len(means), size):
        piece = slice(start, start + size)
        mine, yours, result = (t[:, piece] for t in planes)
        apart = mine - yours
        var, norm = squares(apart, other)
        here = relu(means[piece], var)
        scale, lost = residual_scale(here.var, here.gain, var, norm)
        if bool(lost.any()):
            sources.generator.set_state(before)  # whoever takes over makes the same choices
            return None
        torch.add(combined(apart, other, here.gain, scale), yours, out=result)
        for whole, part in zip(parts, here, strict=True):
            whole[piece] = part
    return moments, found


def through(
    kind: Elementwise, loc: Tensor, var: Tensor, values: Tensor, sources: tuple[Sources, ...]
) -> tuple[Moments, Tensor, Tensor]:
    """The same for any number of sets of sources, and differentiable."""
    moments = kind.moments(loc, var)
    if moments.mean.shape != loc.shape:
        values = expanded(values, moments.mean.shape)
    rest = (moments.var - moments.gain.square() * var).clamp_min(0)
    product = _squares(values, sources)
    norm = sum_of_squares(product)
    usable = norm > torch.finfo(norm.dtype).tiny
    scale = root(torch.where(usable, rest / norm, 0))
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
