"""Values put or added at given places: ``scatter``, ``index_add`` and their relatives.

All are linear in both tensors, with coefficients 0, 1 and ``alpha``, as long as the places are not random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random
from ..registry import rule
from .join import assembled

T = torch.Tensor


def _check(*places: Any) -> None:
    for place in places:
        for part in place if isinstance(place, tuple | list) else (place,):
            if isinstance(part, Random):
                raise UnsupportedOperation(
                    "", reason="its index is random", remedy="Use the mean's index."
                )


def _scattered(input: Any, dim: int, index: Any, src: Any, add: bool) -> Linear:
    _check(index)

    def put(parts: Sequence[Any]) -> Tensor:
        if add:
            return torch.scatter_add(parts[0], dim, index, parts[1])
        return torch.scatter(parts[0], dim, index, parts[1])

    return assembled((input, src), put)


@rule(torch.scatter, T.scatter)
def scatter(
    input: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: Any = None
) -> Linear:
    if reduce not in (None, "add"):
        raise UnsupportedOperation("", reason=f"reduce={reduce!r} is not linear")
    source = src if src is not None else value
    if reduce == "add" and not isinstance(source, Tensor | Random):
        source = torch.full(index.shape, source, dtype=input.dtype, device=index.device)
    return _scattered(input, dim, index, source, reduce == "add")


@rule(torch.scatter_add, T.scatter_add)
def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Linear:
    return _scattered(input, dim, index, src, True)


@rule(torch.scatter_reduce, T.scatter_reduce)
def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Linear:
    if reduce != "sum" or not include_self:
        raise UnsupportedOperation(
            "",
            reason=f"reduce={reduce!r} with include_self={include_self} has no rule",
            remedy='reduce="sum" with include_self=True has one.',
        )
    return _scattered(input, dim, index, src, True)


@rule(torch.index_add, T.index_add)
def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Linear:
    _check(index)

    def put(factor: float) -> Callable[[Sequence[Any]], Tensor]:
        return lambda parts: torch.index_add(parts[0], dim, index, parts[1], alpha=factor)

    return assembled((input, source), put(alpha), put(alpha * alpha))


@rule(torch.index_copy, T.index_copy)
def index_copy(input: Any, dim: int, index: Any, source: Any) -> Linear:
    _check(index)
    return assembled(
        (input, source), lambda parts: torch.index_copy(parts[0], dim, index, parts[1])
    )


@rule(torch.index_fill, T.index_fill)
def index_fill(input: Any, dim: int, index: Any, value: Any) -> Linear:
    _check(index)
    if isinstance(value, Tensor | Random):
        rows: Any = value.expand(  # type: ignore[union-attr]
            [len(index) if d == dim % input.ndim else n for d, n in enumerate(input.shape)]
        )
        return index_copy(input, dim, index, rows)
    return assembled((input, value), lambda parts: torch.index_fill(parts[0], dim, index, parts[1]))


@rule(torch.index_put, T.index_put)
def index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> Linear:
    _check(indices)
    return assembled(
        (input, values), lambda parts: torch.index_put(parts[0], indices, parts[1], accumulate)
    )


@rule(torch.masked_scatter, T.masked_scatter)
def masked_scatter(input: Any, mask: Any, source: Any) -> Linear:
    _check(mask)
    return assembled((input, source), lambda parts: torch.masked_scatter(parts[0], mask, parts[1]))
