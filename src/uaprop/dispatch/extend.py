"""Rules from outside the library: for functions of torch, for one's own, and for whole modules."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import get_testing_overrides, wrap_torch_function
from torch.utils import _pytree as pytree

from .. import registry
from .aten import rule_of_operator

__all__ = ["rule"]

RuleFunction = TypeVar("RuleFunction", bound=Callable[..., Any])


def rule(
    *operations: Callable[..., Any] | type[nn.Module], exact: bool = True, source: str = ""
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule for one or more spellings of an operation, or for a class of modules.

    The decorated function has the operation's own argument names, because torch passes some of
    them as keywords, and returns one of the kinds in :mod:`uaprop.kinds`, or a Gaussian that it computed by
    other operations::

        @ua.rule(my_scale)
        def scale(input, factor):
            return ua.kinds.Linear(
                (input,),
                affine=lambda x: my_scale(x, factor),
                linear=lambda x: my_scale(x, factor),
                squared=lambda v: v * factor**2,
            )

    A rule for a module takes the module first, then the arguments of its ``forward``; it replaces the
    forward pass wherever the input is random. So does a rule for a function of one's own: the function
    is put behind torch's dispatcher in every module that holds it. In-place spellings need no rule.

    Args:
        *operations: functions of torch, one's own functions, or subclasses of ``nn.Module``.
        exact: whether its moments are exact for independent Gaussian elements.
        source: a citation, if the formula is not elementary.

    Returns:
        A decorator that registers the function and returns it unchanged.

    Raises:
        TypeError: if no operation is given, or something that cannot be called or found; and from the
            decorator, if the function cannot be called as the operation is.
    """
    if not operations or not all(callable(operation) for operation in operations):
        raise TypeError("ua.rule needs the operations it is for: @ua.rule(torch.relu, ...)")
    for operation in operations:
        _check_reachable(operation)

    def register(function: RuleFunction) -> RuleFunction:
        for operation in operations:
            _check_signature(operation, function)
        for operation in operations:
            registry.rule(_reachable(operation), exact=exact, source=source)(function)
        rule_of_operator.cache_clear()
        return function

    return register


def _is_module(operation: Any) -> bool:
    return inspect.isclass(operation) and issubclass(operation, nn.Module)


@functools.cache
def _torch_signatures() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Functions of torch, each with one of the same signature in Python."""
    return get_testing_overrides()


def _dispatches(operation: Any) -> bool:
    """Whether the operation asks its arguments' ``__torch_function__`` by itself."""
    if isinstance(operation, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return True
    if hasattr(operation, "_opoverload") or not isinstance(operation, FunctionType):
        return True  # torch.library.custom_op; builtins
    if "handle_torch_function" in operation.__code__.co_names:
        return True
    return operation in _torch_signatures() or hasattr(operation, "__wrapped__")


def _check_reachable(operation: Any) -> None:
    if _is_module(operation) or _dispatches(operation):
        return
    if not any(value is operation for value in operation.__globals__.values()):
        raise TypeError(
            f"ua.rule cannot reach {operation.__qualname__}: a rule replaces a function by its name, "
            "and this one has none at the top of its module; define it there"
        )


def _reachable(operation: Any) -> Callable[..., Any]:
    """What the dispatcher will be given when the operation is called on a Gaussian."""
    if _is_module(operation):
        forward = operation.forward
        if registry.lookup(forward) is None:
            forward = _behind_dispatcher(forward)
            operation.forward = forward
        return forward
    if hasattr(operation, "_opoverload"):
        return operation._opoverload
    if _dispatches(operation):
        return operation
    wrapped = _behind_dispatcher(operation)
    holders = [vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
    for names in (operation.__globals__, *holders):
        for name in [name for name, value in names.items() if value is operation]:
            names[name] = wrapped
    return wrapped


def _behind_dispatcher(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, asking its arguments' ``__torch_function__`` first, as torch's own do."""

    def relevant(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves(
            (args, kwargs), is_leaf=lambda leaf: hasattr(leaf, "__torch_function__")
        )
        return [leaf for leaf in leaves if hasattr(leaf, "__torch_function__")]

    wrapped: Callable[..., Any] = wrap_torch_function(relevant)(function)
    return wrapped


def _check_signature(operation: Any, function: Callable[..., Any]) -> None:
    """The rule must take whatever the operation takes, under the same names and in the same order."""
    wanted = _parameters(operation)
    given = inspect.signature(function).parameters
    if wanted is None:
        return
    kinds = {p.kind for p in given.values()}
    positional = [
        n for n, p in given.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    name = getattr(operation, "__name__", repr(operation))
    for i, parameter in enumerate(wanted):
        if parameter.kind in _VARIABLE or parameter.name == "out":  # nobody writes into a Gaussian
            continue
        by_place = i < len(positional) or inspect.Parameter.VAR_POSITIONAL in kinds
        by_name = parameter.name in given or inspect.Parameter.VAR_KEYWORD in kinds
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        first = i == 0 and by_place  # its name is torch's affair: self, input, tensor
        if not first and not (by_name and (by_place or keyword_only)):
            raise TypeError(
                f"the rule {function.__name__}{inspect.signature(function)} does not fit {name}"
                f"({', '.join(map(str, wanted))}): it has no {parameter.name!r}"
            )
    needed = [n for n, p in given.items() if p.default is p.empty and p.kind not in _VARIABLE]
    if extra := [n for n in needed[1:] if n not in {p.name for p in wanted}]:
        raise TypeError(
            f"the rule {function.__name__}{inspect.signature(function)} does not fit {name}"
            f"({', '.join(map(str, wanted))}): nobody will give it {extra[0]!r}"
        )


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(operation: Any) -> list[inspect.Parameter] | None:
    """An operation's parameters, the module first for a class of modules; None if torch does not say."""
    if _is_module(operation):
        return list(inspect.signature(operation.forward).parameters.values())
    known = operation
    if not isinstance(operation, FunctionType):
        known = _torch_signatures().get(operation)
    if known is None or getattr(known, "__name__", "") == "fn":  # boolean_dispatch hides it
        return None
    return list(inspect.signature(known).parameters.values())
