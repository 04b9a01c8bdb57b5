"""Normalisation of each channel by statistics of so many elements that none has a say in them.

With ``n`` elements of means ``m`` and variances ``v``, ``c = m - mean(m)``, ``f = weight/√s`` and
``s = mean(c²) + mean(v) (1 - 1/n) + ε``, whose variance is ``4 r s²`` with
``r = mean(4 c² v + 2 v²)/(4 n s²)``, and whose covariance with the channel's mean gives
``k = 2 mean(c v)/(n s)``, the output has to first order in the noise of mean and spread::

    mean      c f + bias
    variance  (v + mean(v)/n + c k + c² r) f²

The last three terms are a square's expectation, ``Var[mean(x) + c s'/(2s)]``, hence not negative. They
are all that an element without noise has. What is left out is a part in ``n`` of ``v``; and, in the
gradient, the derivatives of ``k`` and ``r``. With the gradients ``g`` and ``h`` of a loss by mean and
variance of the output, and ``q = Σ g c + 2 f Σ h (v + mean(v)/n + c k + c² r)``, its gradient is ``q/√s``
by the weight, ``t = -q f/(2 s)`` by ``s``, and::

    by m  g f + h k f² + 2 c (h r f² + t/n) - (f Σ g + f² (k Σ h + 2 r Σ h c))/n
    by v  h f² + (f² Σ h/n + t (1 - 1/n))/n
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .compiled import COMPILED, looped

__all__ = ["Statistics", "normalised", "statistics"]

_LITTLE = 0.02  # of the sum of squares that one element may have
_SHORT = 16  # elements of a row, for which a loop of its own does not pay


class Statistics(NamedTuple):
    """Of the ``size`` elements of each channel, ``(channels,)``."""

    size: int
    centre: Tensor  # mean(m)
    spread: Tensor  # mean(c²)
    level: Tensor  # mean(v)
    noise: Tensor  # mean(4 c² v + 2 v²)
    product: Tensor  # mean(c v)
    largest: Tensor  # max(c²) + max(v)


def statistics(mean: Tensor, var: Tensor) -> Statistics:
    """Those of means and variances, ``(batch, channels, …)``; with gradients where those have any."""
    m, v = (_rows(t, mean) for t in (mean, var))
    count = mean.numel() // mean.shape[1]
    (centre,) = _by_channel(_looped(_total, "s", m), mean) / count
    *found, high, loud = _looped(_totals, "ssr", m, v, *_by_row(m, centre))
    spread, level, noise, product = _by_channel(found, mean) / count
    high, loud = (largest.view(-1, mean.shape[1]).amax(0) for largest in (high, loud))
    constants = (t.detach() for t in (noise, product, high + loud))
    return Statistics(count, centre, spread, level, *constants)


def normalised(
    mean: Tensor,
    var: Tensor,
    known: Statistics,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor] | None:
    """Mean and variance of the output, with gradients.

    Args:
        mean: ``(batch, channels, …)``, values in memory.
        var: the same.
        known: their statistics.
        weight: ``(channels,)`` or None.
        bias: ``(channels,)`` or None.
        eps: is added to the variance.

    Returns:
        Two tensors of the mean's shape; None if single elements have too large a part in the statistics.
    """
    with torch.no_grad():
        total = _total_variance(known, eps)
        if not bool((known.largest < _LITTLE * known.size * total).all()):
            return None
    scale, shift = (None if t is None else t.to(mean.dtype) for t in (weight, bias))
    centre, spread = _Normalised.apply(mean, var, scale, shift, known, eps)
    return centre, spread


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        var: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        known: Statistics,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        known = Statistics(known.size, *(t.detach() for t in known[1:]))
        ctx.save_for_backward(mean, var, weight)
        ctx.known, ctx.eps, ctx.shifted = known, eps, bias is not None
        factor, slope, ratio = _factors(known, weight, eps)[1:]
        shift = torch.zeros_like(factor) if bias is None else bias
        m, v = (_rows(t, mean) for t in (mean, var))
        vectors = known.centre, factor, shift, known.level / known.size, slope, ratio
        found = _looped(_output, "ssrrrrrr", m, v, *_by_row(m, *vectors))
        first, second = (_shaped(rows, mean) for rows in found)
        return first, second

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor, by_var: Tensor) -> tuple[Any, ...]:
        mean, var, weight = ctx.saved_tensors
        again = torch.is_grad_enabled()  # a second derivative: through the statistics as well
        known = statistics(mean, var) if again else ctx.known
        root, factor, slope, ratio = _factors(known, weight, ctx.eps)
        n, total = known.size, _total_variance(known, ctx.eps)
        m, v, g, h = (_rows(t, mean) for t in (mean, var, by_mean, by_var))
        sums = _looped(_slopes, "ssssrr", m, v, g, h, *_by_row(m, known.centre, ratio))
        g_sum, g_c, h_sum, h_c, h_v = _by_channel(sums, mean)
        q = g_c + 2 * factor * (h_v + h_c * slope + h_sum * known.level / n)
        t = -0.5 * q * factor / total
        square = factor * factor
        bend, lean = 2 * ratio * square, slope * square
        vectors = (
            known.centre,
            factor,
            bend,
            lean,
            2 * t / n,
            -(factor * g_sum + bend * h_c + lean * h_sum) / n,
            square,
            (square * h_sum / n + t * (1 - 1 / n)) / n,
        )
        found = _looped(_gradient, "sssrrrrrrrr", m, g, h, *_by_row(m, *vectors))
        by_weight = None if weight is None else q * root
        rows = (_shaped(part, mean) for part in found)
        return *rows, by_weight, g_sum if ctx.shifted else None, None, None


def _total_variance(known: Statistics, eps: float) -> Tensor:
    return known.spread + known.level * (1 - 1 / known.size) + eps


def _factors(known: Statistics, weight: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    """``1/√s``, ``f``, ``k`` and ``r``."""
    total = _total_variance(known, eps)
    root = torch.rsqrt(total)
    constant = total.detach()
    slope = 2 * known.product / (known.size * constant)
    ratio = known.noise / (4 * known.size) / constant / constant
    return root, root if weight is None else root * weight, slope, ratio


# ------------------------------------------------------------------ loops over rows


def _total(m: Tensor) -> tuple[Tensor]:
    return (m.sum(1),)


def _totals(m: Tensor, v: Tensor, centre: Tensor) -> tuple[Tensor, ...]:
    c = m - centre
    squares = c * c
    noise = (4 * squares + 2 * v) * v
    return squares.sum(1), v.sum(1), noise.sum(1), (c * v).sum(1), squares.amax(1), v.amax(1)


def _output(
    m: Tensor,
    v: Tensor,
    centre: Tensor,
    factor: Tensor,
    shift: Tensor,
    level: Tensor,
    slope: Tensor,
    ratio: Tensor,
) -> tuple[Tensor, Tensor]:
    c = m - centre
    rest = (level + c * (slope + c * ratio)).clamp_min(0)
    return c * factor + shift, (v + rest) * (factor * factor)


def _slopes(
    m: Tensor, v: Tensor, g: Tensor, h: Tensor, centre: Tensor, ratio: Tensor
) -> tuple[Tensor, ...]:
    c = m - centre
    hc = h * c
    return g.sum(1), (g * c).sum(1), h.sum(1), hc.sum(1), (h * v + hc * c * ratio).sum(1)


def _gradient(
    m: Tensor,
    g: Tensor,
    h: Tensor,
    centre: Tensor,
    factor: Tensor,
    bend: Tensor,
    lean: Tensor,
    spread: Tensor,
    offset: Tensor,
    square: Tensor,
    level: Tensor,
) -> tuple[Tensor, Tensor]:
    c = m - centre
    return g * factor + c * (h * bend + spread) + h * lean + offset, h * square + level


def _looped(function: Callable[..., Any], takes: str, *rows: Tensor) -> Sequence[Tensor]:
    """The function, as a compiled loop where there is one."""
    first = rows[0]
    stacks = [x for x, kind in zip(rows, takes, strict=True) if kind == "s"]
    plain = torch.is_grad_enabled() and any(x.requires_grad for x in rows)
    fits = first.shape[1] >= _SHORT and len(first) > 1 and first.dtype in COMPILED
    found = None
    if fits and not plain and all(x.is_contiguous() for x in stacks):
        found = looped(function, takes, rows)
    return function(*rows) if found is None else found


def _is_in_rows(tensor: Tensor) -> bool:
    """Whether the elements of a channel of a batch element lie side by side."""
    return tensor.ndim > 2 and tensor.is_contiguous()


def _rows(tensor: Tensor, like: Tensor) -> Tensor:
    """``(rows, elements)``, each row of one channel, the channels in turn; a view where it can be."""
    if _is_in_rows(like):
        return tensor.reshape(tensor.shape[0] * tensor.shape[1], -1)
    return tensor.transpose(0, 1).flatten(1)


def _shaped(rows: Tensor, like: Tensor) -> Tensor:
    """Rows as :func:`_rows` makes them, put back."""
    if _is_in_rows(like):
        return rows.reshape(like.shape)
    return rows.unflatten(1, (len(like), *like.shape[2:])).transpose(0, 1)


def _by_row(rows: Tensor, *channels: Tensor) -> Sequence[Tensor]:
    """Numbers for each channel as columns ``(rows, 1)``."""
    table = torch.stack(channels).unsqueeze(1)
    times = len(rows) // table.shape[2]
    return table.expand(-1, times, -1).reshape(len(channels), -1, 1).unbind()


def _by_channel(sums: Sequence[Tensor], like: Tensor) -> Tensor:
    """Sums over rows as sums over channels, ``(sums, channels)``."""
    return torch.stack(tuple(sums)).view(len(sums), -1, like.shape[1]).sum(1)
