"""Models that do something else for what is no tensor.

A Gaussian is no ``torch.Tensor``. A model that says ``x * 2 if isinstance(x, Tensor) else x`` takes its other
branch for one, and nothing would tell. So a model whose code asks for types is run once on Gaussians without
noise: that must give what it gives for tensors. If it does not, its graph is taken, as for a model that
raises an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from ..kinds import plain
from ..rules.extremes import Undecided
from .arguments import Arguments, is_gaussian
from .batch_independence import agree
from .reachable import roots_of

__all__ = ["takes_gaussians"]

_QUESTIONS = frozenset(
    {"isinstance", "issubclass", "is_tensor", "type", "hasattr", "__class__", "is_tensor_like"}
)
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "uaprop")
_DEPTH = 2  # functions that a forward calls, and those that they call

_Checked = weakref.WeakKeyDictionary[nn.Module, dict[Any, bool]]
_checked: _Checked = weakref.WeakKeyDictionary()


def takes_gaussians(model: Callable[..., Any], arguments: Arguments) -> bool:
    """Whether a model does with Gaussians what it does with tensors, as far as a run without noise tells.

    Args:
        model: any callable on tensors.
        arguments: what it is to be called with.

    Returns:
        False if it gives something else. True also of a model that fails: its error comes up where it is run.
    """
    if torch.compiler.is_compiling() or not _asks_for_types(model):
        return True
    key = tuple((tuple(x.shape), x.dtype) for x in arguments.gaussians)
    known = _checked.setdefault(model, {}) if isinstance(model, nn.Module) else {}
    if key not in known:
        known[key] = _agrees(model, arguments)
    return known[key]


def _agrees(model: Callable[..., Any], arguments: Arguments) -> bool:
    means = [x.loc.detach() for x in arguments.gaussians]

    def run(values: list[Any]) -> Any:
        with torch.no_grad(), torch.random.fork_rng():
            result = arguments.run(model, values)
        # In a list: values and indices of a maximum come in another tuple than torch's.
        return [plain(leaf) for leaf in pytree.tree_leaves(result, is_leaf=is_gaussian)]

    try:
        expected = run([mean.clone() for mean in means])
        found = run([Gaussian(mean.clone(), var=0.0) for mean in means])
        if len(found) == len(expected):  # a random index refuses to be used, whatever it would be
            pairs = zip(found, expected, strict=True)
            found = [b if isinstance(a, Undecided) else a for a, b in pairs]
        if agree(found, expected):
            return True
        # a model with randomness of its own gives no result twice
        return not agree(run([mean.clone() for mean in means]), expected)
    except Exception:
        return True  # an error of the model's own, or of a rule, comes up where it is run


def _asks_for_types(model: Callable[..., Any]) -> bool:
    """Whether the code of a model, or of what it calls, asks what its arguments are."""
    if _mentions(model, None, _DEPTH):
        return True
    kinds = {type(module) for root in roots_of(model) for module in root.modules()}
    own = [kind for kind in kinds if not kind.__module__.startswith(_LIBRARIES)]
    return any(_mentions(getattr(kind, "forward", None), kind, _DEPTH) for kind in own)


def _mentions(function: Any, owner: type | None, depth: int) -> bool:
    """Whether a function asks, or one that it calls; methods are looked up in the owner."""
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        return False
    if (function.__module__ or "").startswith(_LIBRARIES):
        return False
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    if names & _QUESTIONS:
        return True
    if depth == 0:
        return False
    called = [function.__globals__.get(name) for name in names]
    called += [getattr(owner, name, None) for name in names]
    return any(_mentions(other, owner, depth - 1) for other in called)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
