"""A map of one tensor, applied to a stack of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..numerics.turns import warning_filters

__all__ = ["across", "expanded"]


def across(function: Callable[..., Any], *stacks: Tensor) -> Any:
    """``function`` on every slice along the first dimension, its results stacked likewise.

    The slices go through together if torch knows how to (``torch.vmap``), else one by one.

    Args:
        function: any map of tensors; what it does to one slice, it does to each.
        *stacks: tensors of the same length.

    Returns:
        What the function returns, every tensor with a new first dimension.

    Raises:
        RecursionError: as the function does; one by one it would come up again, at every level.
    """
    try:
        with warning_filters, warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # vmap warns where it would be slow
            results = torch.vmap(function, randomness="different")(*stacks)
        count = len(stacks[0])
        # Of some functions of tensors without elements it forgets the stack: linalg.pinv.
        if all(t.ndim and len(t) == count for t in pytree.tree_leaves(results)):
            return results
    except RecursionError:
        raise
    except Exception:
        pass  # Not every program can be vectorised; a real error comes up again in the loop.
    answers = [function(*rows) for rows in zip(*stacks, strict=True)]
    return pytree.tree_map(lambda *rows: torch.stack(rows), *answers)


def expanded(stack: Tensor, shape: torch.Size) -> Tensor:
    """A stack of tensors that broadcast to ``shape``, as a stack of that shape."""
    lead = [1] * (len(shape) - (stack.ndim - 1))
    return stack.reshape(len(stack), *lead, *stack.shape[1:]).expand(len(stack), *shape)
