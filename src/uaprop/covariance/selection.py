"""A rearrangement as a choice of columns: which element of the input every output element is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import UnsupportedOperation

__all__ = ["chosen", "index_of", "numbered"]

Key = TypeVar("Key")


def numbered(like: Tensor) -> Tensor:
    """The numbers 1, 2, … with the strides of a mean: whatever view it allows, they do. Exact in float64."""
    numbers = torch.arange(1, like.numel() + 1, dtype=torch.float64, device=like.device)
    return torch.zeros_like(like, dtype=torch.float64).add_(numbers.view(like.shape))


def index_of(places: Tensor) -> Tensor:
    """Which element of the input every element is, from 0 on; -1 for one that is a constant.

    Args:
        places: what became of :func:`numbered`.

    Returns:
        Integers, of the same shape.

    Raises:
        UnsupportedOperation: if the operation was no rearrangement.
    """
    if places.dtype != torch.float64:
        raise UnsupportedOperation(
            "",
            reason=f"its rule says that it rearranges elements, but it gives {places.dtype} for float64",
            remedy="A rule for a conversion answers with Select(..., converts=True).",
        )
    return places.long() - 1


def chosen(maps: Mapping[Key, Tensor], places: Tensor) -> dict[Key, Tensor]:
    """Columns of stacks ``(rows, *shape)`` by their numbers, rearranged; zeros for the number 0.

    Args:
        maps: the stacks.
        places: what became of :func:`numbered`.

    Returns:
        Stacks ``(rows, *places.shape)``.

    Raises:
        UnsupportedOperation: if the operation was no rearrangement.
    """
    index = index_of(places).reshape(-1)
    kept = index >= 0
    every = bool(kept.all())
    in_order = torch.equal(index, torch.arange(len(index), device=index.device))
    index = index.clamp_min(0)
    result = {}
    for key, rows in maps.items():
        columns = rows.reshape(len(rows), rows.shape[1:].numel())
        if not in_order or columns.shape[1] != len(index):
            columns = columns[:, index]
        columns = columns if every else torch.where(kept, columns, 0)
        result[key] = columns.reshape(len(rows), *places.shape)
    return result
