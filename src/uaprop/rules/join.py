"""Random and constant tensors put together: ``cat``, ``stack``, ``where``, masks, assignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random
from ..registry import rule

T = torch.Tensor


def assembled(
    operands: Sequence[Any],
    build: Callable[[Sequence[Any]], Tensor],
    squared: Callable[[Sequence[Any]], Tensor] | None = None,
    joins: bool = False,
) -> Linear:
    """``build`` puts operands side by side; constants count for the mean only.

    Args:
        operands: random tensors and constants.
        build: makes the result of them, with coefficients 0 and 1.
        squared: the same with other coefficients squared.
        joins: whether it does no more than to put whole operands side by side.

    Returns:
        The linear kind.
    """
    places = [i for i, operand in enumerate(operands) if isinstance(operand, Random)]
    if len(places) == len(operands):  # nothing to fill in

        def whole(*values: Tensor) -> Tensor:
            return build(values)

        return Linear(
            tuple(operands),
            affine=whole,
            linear=whole,
            squared=whole if squared is None else lambda *values: squared(values),
            joins=joins,
        )
    zeros = [
        torch.zeros_like(o) if isinstance(o, Tensor) else 0.0  # a random one is filled in anyway
        for o in operands
    ]

    def filled(
        make: Callable[[Sequence[Any]], Tensor], constants: Sequence[Any], values: Sequence[Tensor]
    ) -> Tensor:
        parts = list(constants)
        for place, value in zip(places, values, strict=True):
            parts[place] = value
        return make(parts)

    return Linear(
        tuple(operands[i] for i in places),
        affine=lambda *values: filled(build, operands, values),
        linear=lambda *values: filled(build, zeros, values),
        squared=lambda *values: filled(squared or build, zeros, values),
        joins=joins,
    )


def _register_join(operation: Callable[..., Tensor], *spellings: Callable[..., Tensor]) -> None:
    @rule(operation, *spellings)
    def join(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> Linear:
        where = dim if axis is None else axis
        return assembled(tensors, lambda parts: operation(parts, where), joins=True)

    join.__name__ = operation.__name__


def _register_stack(operation: Callable[..., Tensor]) -> None:
    @rule(operation)
    def stacked(tensors: Sequence[Any]) -> Linear:
        return assembled(tensors, operation, joins=True)

    stacked.__name__ = operation.__name__


_register_join(torch.cat, torch.concat, torch.concatenate)
_register_join(torch.stack)
_register_stack(torch.hstack)
_register_stack(torch.vstack)
_register_stack(torch.dstack)
_register_stack(torch.column_stack)


@rule(torch.block_diag)
def block_diag(*tensors: Any) -> Linear:
    return assembled(tensors, lambda parts: torch.block_diag(*parts))


@rule(torch.nan_to_num, T.nan_to_num)
def nan_to_num(
    input: Random, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Linear:
    finite = torch.isfinite(input.loc)

    def kept(x: Tensor) -> Tensor:
        return torch.where(finite, x, 0)

    return Linear(
        (input,),
        affine=lambda x: torch.nan_to_num(x, nan, posinf, neginf),
        linear=kept,
        squared=kept,
    )


@rule(T.where)
def where_method(self: Any, condition: Any, other: Any) -> Linear:
    return where(condition, self, other)


@rule(torch.where)
def where(condition: Any, input: Any, other: Any) -> Linear:
    if isinstance(condition, Random):
        raise UnsupportedOperation("", reason="its condition is random")
    return assembled((input, other), lambda parts: torch.where(condition, parts[0], parts[1]))


@rule(torch.masked_fill, T.masked_fill)
def masked_fill(input: Random, mask: Tensor, value: Any) -> Linear:
    if isinstance(mask, Random):
        raise UnsupportedOperation("", reason="its mask is random")
    return assembled(
        (input, value), lambda parts: torch.where(mask, parts[1], parts[0]).to(parts[0].dtype)
    )


@rule(T.__setitem__)
def setitem(input: Random, index: Any, value: Any) -> Linear:
    if any(isinstance(part, Random) for part in (index if isinstance(index, tuple) else (index,))):
        raise UnsupportedOperation("", reason="its index is random")

    def put(parts: Sequence[Any]) -> Tensor:
        whole = parts[0].clone()
        whole[index] = parts[1]
        return whole

    return assembled((input, value), put)


@rule(T.copy_)
def copy_(input: Random, src: Any, non_blocking: bool = False) -> Linear:
    return setitem(input, ..., src)


@rule(T.fill_)
def fill_(input: Random, value: Any) -> Linear:
    return setitem(input, ..., value)


@rule(T.zero_)
def zero_(input: Random) -> Linear:
    return setitem(input, ..., 0.0)
