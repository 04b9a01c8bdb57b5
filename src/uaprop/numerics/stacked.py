"""Stacks of vectors: what a nonlinearity does to the factors of every element.

For each element, factors ``f_r`` over sources ``r`` become ``g f_r + s f_r f_p(r)`` with the gain ``g``, each
source's partner ``p(r)``, and ``s`` such that the second term has the variance that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .compiled import COMPILED, looped
from .kernel import elementwise
from .moments import in_memory

__all__ = ["combined", "residual_scale", "squares", "sum_of_squares"]

_ABOVE_TINY = 2**14  # a sum of squares some of which are subnormal is not precise


def sum_of_squares(rows: Tensor | Iterable[Tensor]) -> Tensor:
    """``Σ_r f_r²`` over the rows; without a second stack in memory where no gradient needs it."""
    if isinstance(rows, Tensor) and rows.requires_grad:
        return rows.square().sum(0)
    rows = iter(rows)
    total = next(rows).square()
    for row in rows:
        total.addcmul_(row, row)
    return total


def squares(stack: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
    """``Σ_r f_r²`` and ``Σ_r (f_r f_p(r))²``.

    Args:
        stack: ``(rows, …)``.
        partners: ``(rows,)``, whole numbers.

    Returns:
        Two tensors without the first dimension.
    """
    found = _run(_squares, "si", (stack, partners), stack.shape[1:])
    if found is not None:
        return found[0], found[1]
    return sum_of_squares(stack), sum_of_squares(
        row * stack[partner] for row, partner in zip(stack, partners.tolist(), strict=True)
    )


def _squares(stack: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
    return stack.square().sum(0), (stack * stack[partners]).square().sum(0)


def combined(stack: Tensor, partners: Tensor, gain: Tensor, scale: Tensor) -> Tensor:
    """``g f_r + s f_r f_p(r)``, a new stack; gain and scale have no first dimension."""
    found = _run(_combined, "sivv", (stack, partners, gain, scale), stack.shape)
    if found is not None:
        return found[0]
    return stack[partners].mul_(stack).mul_(scale).addcmul_(stack, gain)


def _combined(stack: Tensor, partners: Tensor, gain: Tensor, scale: Tensor) -> tuple[Tensor]:
    return (stack * (gain + scale * stack[partners]),)


def residual_scale(var: Tensor, gain: Tensor, given: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """``s = √((v_out - g² v_in) / norm)``, and the variance left where the norm is out of range for that.

    Args:
        var: ``v_out``.
        gain: ``g``.
        given: ``v_in``.
        norm: the second of :func:`squares`.

    Returns:
        Two tensors of one shape.
    """
    scale, lost = elementwise(_residual_scale, var, gain, given, norm)
    return scale, lost


def _residual_scale(
    var: Tensor, gain: Tensor, given: Tensor, norm: Tensor
) -> tuple[Tensor, Tensor]:
    rest = (var - gain * (gain * given)).clamp_min(0)  # a squared gain may overflow
    info = torch.finfo(norm.dtype)
    least = _ABOVE_TINY * info.tiny
    ratio = rest / torch.where(norm > least, norm, 1)
    in_range = (ratio <= info.max) & ((ratio >= info.tiny) | (rest == 0))
    usable = (norm > least) & (norm <= info.max) & in_range
    return torch.where(usable, ratio, 0).sqrt(), torch.where(usable, 0, rest)


def _run(
    function: Callable[..., Any], takes: str, tensors: Sequence[Tensor], shape: torch.Size
) -> list[Tensor] | None:
    """The function's compiled loop on contiguous tensors, if there is one."""
    stack = tensors[0]
    if stack.dtype not in COMPILED or stack.numel() == 0:
        return None
    if len(stack) < 2 or not in_memory(*tensors):
        return None
    shapes = {"s": (len(stack), -1), "i": (-1,), "v": (-1,)}
    flat = [t.reshape(shapes[kind]).contiguous() for kind, t in zip(takes, tensors, strict=True)]
    found = looped(function, takes, flat)
    return None if found is None else [t.view(shape) for t in found]
