"""The many names of one operation: methods, functions and in-place forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..registry import Rule, lookup

__all__ = ["name_of", "resolve"]

Operation = Callable[..., Any]


def name_of(operation: Operation) -> str:
    """The name people know an operation by, such as ``torch.nn.functional.relu``."""
    name = getattr(operation, "__name__", repr(operation))
    for owner, prefix in (
        (torch, "torch"),
        (F, "torch.nn.functional"),
        (torch.Tensor, "torch.Tensor"),
    ):
        if getattr(owner, name, None) is operation:
            return f"{prefix}.{name}"
    for candidate, value in vars(F).items():  # boolean_dispatch hides the name
        if value is operation:
            return f"torch.nn.functional.{candidate}"
    return name


def resolve(operation: Operation) -> tuple[Rule | None, bool]:
    """The rule for an operation and whether this spelling of it works in place."""
    found = lookup(operation)
    if found is not None:
        return found, operation is torch.Tensor.__setitem__
    name = getattr(operation, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        for owner in (torch.Tensor, torch, F):
            plain = getattr(owner, name[:-1], None)
            if plain is not None and (found := lookup(plain)) is not None:
                return found, True
    return None, False
