"""Propagation inside of ``torch.func.grad``, ``jvp`` and ``torch.vmap``: which methods can."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from ..errors import UnsupportedOperation

__all__ = ["refuse_transforms"]

_ALL = frozenset({TransformType.Grad, TransformType.Jvp, TransformType.Vmap})
_CAN: Mapping[str, frozenset[TransformType]] = {
    "diagonal": _ALL,
    "calibrated": _ALL,
    "sketch": frozenset({TransformType.Grad}),
    "full": frozenset({TransformType.Grad}),
}
_REFUSALS = {
    TransformType.Grad: (
        "torch.func.grad",
        "the answer of method {!r} carries no gradients",
        'Use method="diagonal", "calibrated", "sketch" or "full".',
    ),
    TransformType.Jvp: (
        "torch.func.jvp",
        "method {!r} has no forward derivatives",
        'Use method="diagonal" or "calibrated"; "sketch" and "full" have gradients, as for jacrev.',
    ),
    TransformType.Vmap: (
        "torch.vmap",
        "method {!r} looks at values, and vmap hides them",
        "Propagate the whole batch at once: its elements are kept apart. Or use "
        'method="diagonal" or "calibrated".',
    ),
}


def refuse_transforms(method: str) -> None:
    """Refuse to run inside of a transform that the method cannot be run in.

    ``torch.func.grad`` of an answer that carries no gradients would be zero, without a word.

    Raises:
        UnsupportedOperation: naming transform and method.
    """
    if torch._C._functorch.peek_interpreter_stack() is None:
        return
    inside = {level.key() for level in retrieve_all_functorch_interpreters()}
    for transform in _REFUSALS.keys() & inside - _CAN.get(method, frozenset()):
        name, reason, remedy = _REFUSALS[transform]
        raise UnsupportedOperation(name, reason=reason.format(method), remedy=remedy)
