"""Whether a batch may be cut: how many elements at a time, and whether they leave each other alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .arguments import Arguments
from .batched import Batched
from .jacobian import mixes

__all__ = ["check_apart", "default_chunk", "is_training", "refusal"]

# Input elements of a stack that are in flight at once, by default. A layer may have several times as many
# elements, and from 32 MiB on the C library hands every tensor back to the system.
_AT_ONCE = 5 * 2**18


def default_chunk(
    model: Callable[..., Any], arguments: Arguments, passes: int, fewest: int = 2
) -> int | None:
    """Batch elements at a time so that a stack of passes is of a bounded size, if the batch can be cut.

    Memory is one reason; another that the system clears what it hands out anew, which for stacks of large
    pictures takes as long as to compute with them.

    Args:
        model: what is run on them.
        arguments: its arguments.
        passes: how many in the stack.
        fewest: batch elements, with fewer than which it would not pay.

    Returns:
        A number of batch elements; None for all of them.
    """
    batch = arguments.batch
    if batch is None or batch < fewest:
        return None
    elements = passes * sum(x.numel() for x in arguments.gaussians)
    if elements <= _AT_ONCE:
        return None
    pieces = -(-elements // _AT_ONCE)
    size = -(-batch // pieces)  # of much the same length
    return size if size < batch and _are_apart(model, arguments) else None


def _are_apart(model: Callable[..., Any], arguments: Arguments) -> bool:
    """Whether a batch can be cut without anybody having asked for it: only if there is no doubt.

    A batch element, among others that are not numbers, must give what it gives in its own batch
    (:class:`~uaprop.methods.batched.Batched`): then neither the others, nor how many they are, nor its place
    among them has to do with it. Plain tensors may be no part of the batch, and a module in training
    mode has a state that would change, and draws that would repeat.

    Returns:
        True if it can.
    """
    if arguments.has_tensors:
        return False
    if is_training(model):
        return False
    trial = Batched(lambda *values: arguments.run(model, values), arguments.batch)
    with torch.no_grad(), torch.random.fork_rng():
        try:
            trial(*(x.loc.detach().unsqueeze(0) for x in arguments.gaussians))
        except Exception:
            return False  # the batch is run as a whole then, and a real error comes up there
    return trial.batch is not None


def is_training(model: Callable[..., Any]) -> bool:
    """Whether any part of a model is in training mode, so that it may notice how often it is run."""
    return isinstance(model, nn.Module) and any(module.training for module in model.modules())


def check_apart(model: Callable[..., Any], arguments: Arguments, chunk: int) -> None:
    """Look whether the first two batch elements influence each other.

    Raises:
        ValueError: if they do, so that the batch must not be cut.
    """
    batch = arguments.batch
    if batch is None or batch <= chunk:
        return
    pair = arguments.cut(slice(0, 2))
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng():
        leaves = [x.loc.detach().clone().requires_grad_() for x in pair.gaussians]
        found = pair.run(model, [leaf.clone() for leaf in leaves])
        for value in pytree.tree_leaves(found):
            if not isinstance(value, Tensor) or not value.requires_grad:
                continue
            if value.ndim == 0 or value.shape[0] != 2 or mixes(value, leaves):
                raise ValueError(refusal(chunk))


def refusal(chunk: int) -> str:
    """What to say to somebody who wants to cut such a batch."""
    return (
        "the model's batch elements influence each other, or its answer has no batch dimension, "
        f"so it cannot be run on chunk={chunk} of them at a time; leave chunk out"
    )
