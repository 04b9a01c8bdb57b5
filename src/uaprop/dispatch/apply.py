"""Run one operation on random operands: rule, kind, covariance, answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..covariance import Covariance
from ..errors import UnsupportedOperation
from ..kinds import Bilinear, Elementwise, Joint, Kind, Linear, Noise, Select
from ..registry import Rule
from .autocast import is_autocast, outside_autocast
from .functions import plain_function, random_arguments, widened
from .handle import Handle
from .place import calling_module
from .spellings import IN_PLACE, Operation, name_of, resolve
from .watch import Event, Watch, current

__all__ = ["apply"]

Wrap = Callable[[Tensor, Covariance], Handle]
_KINDS = (Linear, Select, Elementwise, Bilinear, Joint, Noise)
_SCALAR = (Elementwise, Linear)  # kinds that can be an increasing function of each element


def apply(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], wrap: Wrap) -> Any:
    """Answer ``operation(*args, **kwargs)``, at least one argument being random.

    Args:
        operation: the function of torch that was called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        wrap: makes the answer's type from a mean and a covariance.

    Returns:
        A random tensor, a tuple of them, or whatever plain value the rule gives.

    Raises:
        UnsupportedOperation: if there is no rule, or the rule has no answer for these arguments.
        TypeError: if the operation is compiled by TorchScript.
    """
    if is_autocast():
        args, kwargs = widened(args, kwargs)
        with outside_autocast():
            return apply(operation, args, kwargs, wrap)
    rule, inplace = resolve(operation)
    watch = current()
    mark = 0 if watch is None else len(watch.events)
    if rule is None and isinstance(operation, torch._C.ScriptMethod):
        raise TypeError(
            f"{calling_module() or 'a model'} is compiled by TorchScript and takes tensors only; "
            "ua.propagate captures such a model with torch.export"
        )
    if rule is None:
        unknown = UnsupportedOperation(name_of(operation), module=calling_module())
        return _without_rule(operation, args, kwargs, wrap, unknown, Event(operation, "", None))
    inplace = inplace or (bool(kwargs) and bool(kwargs.get("inplace", False)))
    target = args[0] if inplace else None
    try:
        if inplace and not isinstance(target, Handle):
            raise UnsupportedOperation(
                name_of(operation),
                reason="a plain tensor cannot take on a random value in place",
                remedy="Write x = x + y instead of x += y, or start from ua.Gaussian(x, var=0).",
            )
        answer = _call(rule, operation, args, kwargs)
        if inplace and isinstance(answer, Select):
            raise UnsupportedOperation(
                name_of(operation),
                reason="a Gaussian does not change its shape or dtype in place",
                remedy="Write x = x.unsqueeze(0) instead of x.unsqueeze_(0), and likewise.",
            )
        kind = answer if isinstance(answer, _KINDS) else None
        if isinstance(kind, Elementwise) and kind.inputs[0].cov.needs_functions:
            kind = replace(
                kind, function=plain_function(operation, args, kwargs, kind.inputs, inplace)
            )
        if kind is None:
            result = answer
        elif isinstance(kind, _SCALAR) and (x := _may_wait(kind)) is not None:
            result = x.defer(kind, _on_random(operation, args, kwargs, kind.inputs))
        else:
            result = _realise(kind, wrap)
    except UnsupportedOperation as error:
        refusal = UnsupportedOperation(
            error.operation or name_of(operation),
            reason=error.reason,
            remedy=error.remedy,
            module=error.module or calling_module(),
            smooth=error.smooth,
        )
        if watch is not None:
            watch.since(mark)
        if inplace and (watch is None or watch.stand_in is None):
            raise refusal from None
        return _without_rule(operation, args, kwargs, wrap, refusal, Event(operation, "", rule))
    if watch is not None and watch.record:
        parts = watch.since(mark)
        same = any(result is arg for arg in args)
        watch.events.append(Event(operation, calling_module(), rule, kind, parts, same))
    if target is None:
        return result
    if result is not target and not target.become(result):
        loc, cov = result.loc, result.cov
        if loc.dtype != target.loc.dtype:
            result = result.to(target.loc.dtype)
            loc, cov = result.loc, result.cov
        target.assign(loc, cov)
    return target


def _without_rule(
    operation: Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wrap: Wrap,
    refusal: UnsupportedOperation,
    event: Event,
) -> Any:
    """The answer of a covariance that takes any differentiable function, or the refusal."""
    inputs = random_arguments(args, kwargs)
    representation = type(inputs[0].cov)
    watch = current() or Watch()
    if watch.stand_in is not None:
        watch.events.append(replace(event, place=refusal.module, refusal=refusal))
        return watch.stand_in(operation, args, kwargs, inputs)
    if operation in IN_PLACE:
        raise refusal from None
    function = plain_function(operation, args, kwargs, inputs, False)
    if representation.needs_functions:
        through = representation.anything
    elif watch.linearise and refusal.smooth:
        through = representation.linearised
    else:
        raise refusal from None
    try:
        result = through(inputs, function)
    except (TypeError, AttributeError) as error:  # no floating-point tensor, or several
        raise refusal from error
    if through == representation.linearised:
        place = f" in module '{refusal.module}'" if refusal.module else ""
        watch.linearised.setdefault(f"{refusal.operation}{place}")
    if isinstance(result[0], Tensor):
        return wrap(*result)
    return tuple(None if part is None else wrap(*part) for part in result)


def _call(rule: Rule, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return rule.function(*args, **kwargs)
    except TypeError as error:
        try:
            inspect.signature(rule.function).bind(*args, **kwargs)
        except TypeError as mismatch:
            raise UnsupportedOperation(
                name_of(operation),
                reason=f"its rule does not know these arguments ({mismatch})",
                remedy="Call it with the arguments of its usual form.",
            ) from error
        raise


def _may_wait(kind: Elementwise | Linear) -> Handle | None:
    """The operand of an increasing function to keep back: of a linear one only behind another."""
    if not kind.increasing:
        return None
    (x,) = kind.inputs
    if not isinstance(x, Handle):
        return None
    waits = x.raised is not None if isinstance(kind, Linear) else type(x.cov).defers
    return x if waits else None


def _on_random(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: tuple[Any, ...]
) -> Callable[[Any], Any]:
    """The operation as a function of its random operand; prepared when it is called, if ever."""
    return lambda x: plain_function(operation, args, kwargs, inputs, False)(x)


def _realise(kind: Kind, wrap: Wrap) -> Any:
    representation = type(kind.inputs[0].cov)
    for other in kind.inputs[1:]:
        if type(other.cov) is not representation:
            raise UnsupportedOperation(
                "",
                reason="its operands carry different representations of covariance, "
                f"{representation.__name__} and {type(other.cov).__name__}",
                remedy="Start both from the same kind of ua.Gaussian.",
            )
    result = representation.through(kind)
    if not isinstance(kind, Select):
        return wrap(*result)
    parent = kind.inputs[0]
    if isinstance(result[0], Tensor):
        value = wrap(*result)
        _link(value, parent, kind.apply)
        if kind.repeats:
            value.remember_origin(parent, kind.apply)  # type: ignore[arg-type]
        return value
    values = tuple(wrap(*pair) for pair in result)
    for i, value in enumerate(values):
        _link(value, parent, lambda t, i=i: kind.apply(t)[i])  # type: ignore[misc]
    return values


def _link(value: Handle, parent: Any, cut: Callable[[Tensor], Tensor]) -> None:
    """Make the value a view of its parent if torch made its mean one."""
    if _aliases(value.loc, parent.loc):
        value.become_view(parent, cut)


def _aliases(part: Tensor, whole: Tensor) -> bool:
    if not torch.compiler.is_compiling():
        return bool(torch._C._is_alias_of(part, whole))  # type: ignore[attr-defined]
    base = part._base  # a traced program knows bases, but no memory
    return part is whole or (base is not None and (base is whole or base is whole._base))
