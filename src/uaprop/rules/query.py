"""Questions about a tensor that have a plain answer, and plain tensors made in its likeness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..kinds import Random
from ..registry import rule

T = torch.Tensor


def _register_query(operation: Callable[..., Any], *spellings: Callable[..., Any]) -> None:
    @rule(operation, *spellings)
    def query(input: Random, *args: Any, **kwargs: Any) -> Any:
        return operation(input.loc, *args, **kwargs)

    query.__name__ = operation.__name__


for _name in ("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"):
    _register_query(getattr(torch, _name))
for _name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"):
    _register_query(getattr(T, _name))
for _name in ("is_floating_point", "is_complex", "numel"):
    _register_query(getattr(torch, _name), getattr(T, _name))
for _name in ("is_contiguous", "stride", "element_size", "get_device", "storage_offset"):
    _register_query(getattr(T, _name))
