"""Whether training mode changes what a model computes, and a warning if it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from .reachable import roots_of
from .user_warning import warn_user

__all__ = ["training_message", "warn_if_training"]

_PROBABILITIES = ("p", "drop_prob", "dropout")  # of own modules that drop something
_NAMED = 3  # modules that a message names


def warn_if_training(model: Any) -> None:
    """Warn if a part of the model is in training mode and computes something else there."""
    if message := training_message(model):
        warn_user(message)


def training_message(model: Any) -> str:
    """What to say of a model in training mode.

    Dropout that is in training mode inside of a model in evaluation mode was put there on purpose.

    Args:
        model: any callable.

    Returns:
        "" if the model computes the same in evaluation mode, or is meant as it is.
    """
    places: list[str] = []
    for root in roots_of(model):
        places += (
            f"'{name}' ({type(module).__name__})" if name else type(module).__name__
            for name, module in _changed(root)
        )
    if not places:
        return ""
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return (
        f"the model is in training mode, and {', '.join(places[:_NAMED])}{more} would compute something "
        "else in evaluation mode. Call model.eval() first; for random dropout alone, call .train() on "
        "the dropout modules after that."
    )


def _changed(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if not _any_training(root):  # names take longer
        return
    for name, module in root.named_modules():
        meant = not root.training and isinstance(module, _DropoutNd)
        if module.training and not meant and _computes_otherwise(module):
            yield name, module


def _any_training(root: nn.Module) -> bool:
    seen, waiting = {root}, [root]
    while waiting:
        module = waiting.pop()
        if module.training:
            return True
        children = {child for child in module._modules.values() if child is not None} - seen
        waiting += children
        seen |= children
    return False


def _computes_otherwise(module: nn.Module) -> bool:
    """Whether a module in training mode computes something else than in evaluation mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, _NormBase):
        return module.running_mean is not None
    if isinstance(module, nn.RReLU):
        return module.lower != module.upper
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    if isinstance(module, torch.jit.ScriptModule):
        return hasattr(module, "forward") and "training" in module.code
    kind = type(module)
    if kind.__module__.startswith("torch.nn.modules."):
        return False  # its parts are asked themselves
    code = getattr(kind.forward, "__code__", None)
    if code is None or "training" not in code.co_names:
        return False
    given = [getattr(module, name) for name in _PROBABILITIES if hasattr(module, name)]
    return not given or any(given)
