"""Branches that training leaves out at random: stochastic depth, as other packages write it.

They draw a mask from plain tensors and multiply by it, so that a Gaussian would come out with the variance
of one draw, and nothing would tell. Their functions get the rules of :mod:`uaprop.rules.noise` as soon as
they are met.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import nn

from ..registry import lookup
from ..rules.noise import drop_path, stochastic_depth
from .extend import rule

__all__ = ["admit", "admit_imported"]

_HOMES = ("torchvision.ops.stochastic_depth", "timm.layers.drop")
_SOURCE = "mean and variance of a Bernoulli mask"
_RULES: dict[str, Callable[..., Any]] = {
    "stochastic_depth": stochastic_depth,
    "drop_path": drop_path,
}


def admit(model: Any) -> None:
    """Give rules to the stochastic depth of a model's modules, whatever package they are from."""
    admit_imported()
    if not isinstance(model, nn.Module):
        return
    for kind in _types(model):
        foreign = kind.__name__.endswith("DropPath") and kind.__module__ not in _HOMES
        if foreign and lookup(kind.forward) is None:
            rule(kind, source=_SOURCE)(_left_out)


def _types(model: nn.Module) -> set[type[nn.Module]]:
    """The types of all modules; ``Module.modules`` takes longer than a small layer."""
    seen, waiting = {model}, [model]
    while waiting:
        children = {child for child in waiting.pop()._modules.values() if child is not None}
        waiting += children - seen
        seen |= children
    return {type(module) for module in seen}


def admit_imported() -> None:
    """Give rules to the stochastic depth of torchvision and timm, once they are imported."""
    for home in _HOMES:
        if home in sys.modules:
            for name, known in _RULES.items():
                function = getattr(sys.modules[home], name, None)
                if isinstance(function, FunctionType) and lookup(function) is None:
                    rule(function, source=_SOURCE)(known)


def _left_out(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The rule for a module that has a probability and one input; transformers has many."""
    (x,) = (*args, *kwargs.values())
    return drop_path(x, self.drop_prob or 0.0, self.training)
