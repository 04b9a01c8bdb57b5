"""Checks of the options that several methods share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .arguments import Arguments

__all__ = ["check_distinct", "check_keys", "chosen", "whole_number", "whole_numbers_if_given"]

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def whole_number(name: str, value: Any, least: int) -> int:
    """``value`` if it is a whole number and at least ``least``.

    Returns:
        The number.

    Raises:
        TypeError: if it is not a whole number.
        ValueError: if it is too small.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def whole_numbers_if_given(**options: Any) -> None:
    """Check options that may be None and are whole numbers from 1 on otherwise."""
    for name, value in options.items():
        if value is not None:
            whole_number(name, value, 1)


def check_keys(keys: Any, arguments: Arguments) -> None:
    """Check keys of the items of a batch.

    Raises:
        TypeError: if they are not integers.
        ValueError: if there is not one for each item.
    """
    if keys is None:
        return
    if not isinstance(keys, Sequence) or not all(type(key) is int for key in keys):
        raise TypeError(f"keys must be a list of integers, one for each item, not {keys!r}")
    if arguments.batch is None:
        raise ValueError(
            "keys belong to the items of a batch, the first dimension of every tensor argument; these "
            "arguments have none in common"
        )
    if len(keys) != arguments.batch:
        raise ValueError(f"{len(keys)} keys were given for a batch of {arguments.batch} items")


def check_distinct(keys: Sequence[int] | None) -> None:
    """Refuse keys that would give the same noise to two items that have to do with each other.

    Raises:
        ValueError: if a key is given twice.
    """
    if keys is not None and len(set(keys)) < len(keys):
        raise ValueError(
            "the batch elements influence each other, or have noise in common, so that the rest of their "
            "noise must be independent; give each a key of its own"
        )


def chosen(outputs: Sequence[int], count: int, device: torch.device) -> Tensor:
    """The numbers of the outputs that are wanted, out of ``count``.

    Returns:
        Numbers from 0 on.

    Raises:
        TypeError: if they are no whole numbers.
        ValueError: if there is no such output.
    """
    try:
        numbers = torch.as_tensor(outputs, device=device)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0, device="cpu")
    if numbers.ndim != 1 or numbers.numel() == 0 or numbers.dtype not in _WHOLE:
        raise TypeError(f"outputs must be a list of whole numbers, at least one, not {outputs!r}")
    if int(numbers.min()) < -count or int(numbers.max()) >= count:
        raise ValueError(f"outputs={list(outputs)}: a batch element has only {count} outputs")
    return numbers % count
