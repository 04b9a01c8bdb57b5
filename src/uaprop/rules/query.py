"""Questions about a tensor that have a plain answer, and plain tensors made in its likeness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedOperation
from ..kinds import Random
from ..registry import rule

T = torch.Tensor

# Answers that are random and not Gaussian: truth values, indices, numbers, arrays.
_DECISIONS = (
    *(torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.isnan, torch.isfinite),
    *(torch.argmax, torch.argmin, torch.argsort, torch.sign, torch.round),
    *(T.eq, T.ne, T.lt, T.le, T.gt, T.ge, T.isnan, T.isfinite, T.argmax, T.argmin, T.argsort),
    *(T.sign, T.round, T.item, T.tolist, T.numpy),
    *(torch.equal, T.equal, torch.allclose, T.allclose, torch.floor, T.floor, torch.ceil, T.ceil),
)


@rule(*_DECISIONS)
def decision(*args: Any, **kwargs: Any) -> Any:
    raise UnsupportedOperation(
        "",
        reason="its answer would be random, but not Gaussian",
        remedy='Decide on x.mean instead, or use method="samples" on a function that ends in '
        "scores.",
        smooth=False,
    )


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
_aten = torch.ops.aten  # sizes in a graph that was captured from TorchScript
for _operator in (_aten.size.int, _aten.size.default, _aten.dim.default, _aten.len.Tensor):
    _register_query(_operator)
