"""Values put or added at given places: ``scatter``, ``index_add`` and their relatives.

All are linear in both tensors, with coefficients 0, 1 and ``alpha``, as long as the places are not random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random, Select, plain
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
        if isinstance(value, Random) and not torch.compiler.is_compiling():
            index = index.unique()  # torch's derivative counts an index twice that is named twice
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


# ------------------------------------------------------------------ into what would be a view


@rule(torch.select_scatter, T.select_scatter)
def select_scatter(input: Any, src: Any, dim: int, index: Any) -> Linear:
    _check(index)
    return assembled(
        (input, src), lambda parts: torch.select_scatter(parts[0], parts[1], dim, index)
    )


@rule(torch.slice_scatter, T.slice_scatter)
def slice_scatter(
    input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Linear:
    return assembled(
        (input, src),
        lambda parts: torch.slice_scatter(parts[0], parts[1], dim, start, end, step),
    )


@rule(torch.diagonal_scatter, T.diagonal_scatter)
def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Linear:
    return assembled(
        (input, src),
        lambda parts: torch.diagonal_scatter(parts[0], parts[1], offset, dim1, dim2),
    )


# ------------------------------------------------------------------ by strides over memory


def _strided(input: Any, size: Any, stride: Any, offset: Any) -> Tensor:
    """Which elements of a tensor a window over its memory has, by their positions.

    Args:
        input: the tensor, random or constant.
        size: the window's shape.
        stride: the window's strides.
        offset: where it begins; None for where the tensor begins.

    Returns:
        Positions among the flattened elements, of the window's shape.

    Raises:
        UnsupportedOperation: if the tensor's memory is not the row of its elements.
    """
    mean = plain(input)
    if torch.compiler.is_compiling():  # which knows bases, but no memory
        whole = mean._base is None
    else:
        whole = mean.storage_offset() == 0
    if not whole or not mean.is_contiguous():
        raise UnsupportedOperation(
            "",
            reason="it reads memory by strides, and a view shares its memory with other elements",
            remedy="Call x.contiguous() or x.clone() before, or index the tensor instead.",
            pure=False,
        )
    positions = torch.arange(mean.numel(), device=mean.device)
    found: Tensor = torch.as_strided(positions, size, stride, offset or 0)
    return found


@rule(torch.as_strided_copy)
def as_strided_copy(input: Random, size: Any, stride: Any, storage_offset: Any = None) -> Select:
    positions = _strided(input, size, stride, storage_offset)
    return Select((input,), lambda x: x.reshape(-1)[positions])


@rule(torch.as_strided, T.as_strided)
def as_strided(input: Random, size: Any, stride: Any, storage_offset: Any = None) -> Select:
    positions, mean = _strided(input, size, stride, storage_offset), input.loc

    def apply(x: Tensor) -> Tensor:
        if x is mean:  # a view of it, so that what is written to the one is written to the other
            return torch.as_strided(x, size, stride, storage_offset)
        return x.reshape(-1)[positions]

    return Select((input,), apply)


@rule(torch.as_strided_scatter, T.as_strided_scatter)
def as_strided_scatter(
    input: Any, src: Any, size: Any, stride: Any, storage_offset: Any = None
) -> Linear:
    positions = _strided(input, size, stride, storage_offset).reshape(-1)
    if not torch.compiler.is_compiling() and len(positions.unique()) < len(positions):
        raise UnsupportedOperation(
            "",
            reason="it writes to an element more than once",
            remedy="Write each once.",
            pure=False,
        )

    def put(parts: Sequence[Any]) -> Tensor:
        flat = parts[0].reshape(-1).scatter(0, positions, parts[1].reshape(-1))
        return flat.view(input.shape)

    return assembled((input, src), put)
