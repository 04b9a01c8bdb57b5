"""The derivative of a plain function along a stack of directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .stacked import across

__all__ = ["along", "floating"]


def floating(value: Any) -> tuple[Any, ...]:
    """What a function returned, as a tuple of tensors and of what is None.

    Returns:
        The tuple.

    Raises:
        TypeError: if there is anything but floating-point tensors.
    """
    parts = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not all(p is None or (isinstance(p, Tensor) and p.is_floating_point()) for p in parts):
        raise TypeError("its result is not a floating-point tensor")
    return parts


def along(
    function: Callable[..., Any], at: tuple[Tensor, ...], stacks: list[Tensor]
) -> tuple[Tensor, ...]:
    """The derivative of ``function`` at ``at`` along each slice of ``stacks``.

    Args:
        function: of as many tensors; returns one, or a tuple or list of tensors and of what is None.
        at: where to differentiate.
        stacks: directions, ``(count, *shape)`` for each input.

    Returns:
        ``(count, *shape)`` for each tensor that the function returns.
    """

    def tensors(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(part for part in floating(function(*inputs)) if part is not None)

    def derivative(*rows: Tensor) -> tuple[Tensor, ...]:
        try:
            found: tuple[Tensor, ...] = torch.func.jvp(tensors, at, rows)[1]
        except (NotImplementedError, RuntimeError):  # no forward derivative: two backward ones
            found = torch.autograd.functional.jvp(tensors, at, rows, create_graph=True)[1]
        return found

    slopes: tuple[Tensor, ...] = across(derivative, *stacks)
    return slopes
