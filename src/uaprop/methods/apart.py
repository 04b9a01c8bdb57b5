"""Whether a batch may be cut: how many elements at a time, and whether they leave each other alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .arguments import Arguments
from .jacobian import mixes

__all__ = ["are_apart", "check_apart", "default_chunk", "refusal"]

_CHUNK_ELEMENTS = 2**20  # input elements of a stack that are in flight at once, by default


def default_chunk(arguments: Arguments, passes: int) -> int | None:
    """Batch elements at a time so that a stack of passes is of a bounded size.

    Memory is one reason; another that the system clears what it hands out anew, which for stacks of large
    pictures takes as long as to compute with them.

    Returns:
        A number of batch elements; None for all of them.
    """
    batch = arguments.batch
    if batch is None:
        return None
    elements = sum(x.numel() for x in arguments.gaussians) // max(1, batch)
    size = max(1, _CHUNK_ELEMENTS // max(1, passes * elements))
    return None if size >= batch else size


def are_apart(model: Callable[..., Any], arguments: Arguments) -> bool:
    """Whether the first two batch elements leave each other alone, as far as derivatives tell."""
    try:
        return _looked_at(model, arguments, thoroughly=True)
    except Exception:
        return False  # the batch is run as a whole then, and a real error comes up there


def check_apart(model: Callable[..., Any], arguments: Arguments, chunk: int) -> None:
    """Look whether the first two batch elements influence each other.

    Raises:
        ValueError: if they do, so that the batch must not be cut.
    """
    batch = arguments.batch
    if batch is None or batch <= chunk:
        return
    if not _looked_at(model, arguments, thoroughly=False):
        raise ValueError(refusal(chunk))


def _looked_at(model: Callable[..., Any], arguments: Arguments, thoroughly: bool) -> bool:
    """Whether two batch elements are apart; ``thoroughly`` if what has no derivative is not believed."""
    pair = arguments.cut(slice(0, 2))
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng():
        leaves = [x.loc.detach().clone().requires_grad_() for x in pair.gaussians]
        found = pair.run(model, [leaf.clone() for leaf in leaves])
        for value in pytree.tree_leaves(found):
            if not isinstance(value, Tensor):
                continue
            if not value.requires_grad:
                if thoroughly:
                    return False
                continue
            if value.ndim == 0 or value.shape[0] != 2 or mixes(value, leaves):
                return False
    return True


def refusal(chunk: int) -> str:
    """What to say to somebody who wants to cut such a batch."""
    return (
        "the model's batch elements influence each other, or its answer has no batch dimension, "
        f"so it cannot be run on chunk={chunk} of them at a time; leave chunk out"
    )
