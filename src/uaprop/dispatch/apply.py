"""Run one operation on random operands: rule, kind, covariance, answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..covariance import Covariance, Diagonal, Factors
from ..errors import UnsupportedOperation
from ..kinds import Bilinear, Elementwise, Joint, Kind, Larger, Linear, Noise, Select
from ..numerics.autocast import is_autocast, outside_autocast
from ..registry import Rule
from .account import account_of_joined, account_of_selected
from .functions import plain_function, random_arguments, widened
from .half_precision import check_factors, check_range
from .handle import Handle
from .place import calling_module
from .spellings import IN_PLACE, Operation, name_of, resolve
from .watch import Event, Watch, current, refused

__all__ = ["apply"]

Wrap = Callable[[Tensor, Covariance], Handle]
_DETACHING = frozenset({torch.Tensor.detach, torch.detach})
_KINDS = (Linear, Select, Elementwise, Bilinear, Joint, Larger, Noise)


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
    detaches = operation in _DETACHING
    if (detaches or not torch.is_grad_enabled()) and _responds(args, kwargs):
        # What a model keeps from its gradients still responds to its input.
        with torch.enable_grad():
            if detaches:
                operation, args = torch.Tensor.view, (args[0], args[0].shape)
            return apply(operation, args, kwargs, wrap)
    rule, inplace = resolve(operation)
    if kwargs and "out" in kwargs:
        if kwargs["out"] is not None:
            _refuse_out(operation)
        kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    if rule is None:
        _refuse_script(operation)
        unknown = UnsupportedOperation(name_of(operation), module=calling_module())
        return _without_rule(operation, args, kwargs, wrap, unknown, Event(operation, "", None))
    watch = current()
    mark, known = (0, 0) if watch is None else (len(watch.events), len(watch.refusals))
    if kwargs and kwargs.get("inplace", False):
        inplace = True
    target = args[0] if inplace else None
    kind: Any = None
    try:
        if inplace:
            _check_target(operation, target)
        try:
            result = rule.function(*args, **kwargs)
        except TypeError as error:
            _check_arguments(rule, operation, args, kwargs, error)
            raise
        if isinstance(result, _KINDS):
            kind = result
            if inplace:
                _check_kind(operation, kind)
            representation = type(kind.inputs[0].cov)
            if isinstance(kind, Select):
                result = _selected(kind, representation.through(kind), wrap)
            else:
                if isinstance(kind, Elementwise) and representation.needs_functions:
                    function = plain_function(operation, args, kwargs, kind.inputs, inplace)
                    kind = replace(kind, function=function)
                if len(kind.inputs) > 1:
                    _check_alike(representation, kind.inputs)
                mean, cov = representation.through(kind)
                result = wrap(mean, cov)
                if mean.dtype == torch.float16 and representation is Diagonal:
                    check_range(rule.function, args, kwargs, cov.var, wrap)
                elif mean.dtype == torch.float16 and isinstance(cov, Factors):
                    check_factors(cov.values, cov.var)
                if isinstance(kind, Elementwise | Linear) and kind.monotone:
                    _link_monotone(result, kind, operation, args, kwargs, inplace)
                if isinstance(kind, Linear) and kind.joins:
                    account_of_joined(kind, result)
    except UnsupportedOperation as error:
        refusal = UnsupportedOperation(
            error.operation or name_of(operation),
            reason=error.reason,
            remedy=error.remedy,
            module=error.module or calling_module(),
            smooth=error.smooth,
            pure=error.pure,
        )
        if watch is not None:
            watch.since(mark)
            del watch.refusals[known:]  # those of its parts
        if inplace and (watch is None or watch.stand_in is None):
            refused(refusal)
            raise refusal from None
        return _without_rule(operation, args, kwargs, wrap, refusal, Event(operation, "", rule))
    if watch is not None and watch.record:
        parts = watch.since(mark)
        same = any(result is arg for arg in args)
        watch.events.append(Event(operation, calling_module(), rule, kind, parts, same))
    if target is None:
        return result
    if result is not target:
        if result.dtype != target.dtype:
            result = result.to(target.dtype)
        target.adopt(result)
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
    if operation in IN_PLACE or not refusal.pure:
        raise refused(refusal) from None
    function = plain_function(operation, args, kwargs, inputs, False)
    if representation.needs_functions:
        through = representation.anything
    elif watch.linearise and refusal.smooth:
        through = representation.linearised
    else:
        raise refused(refusal) from None
    try:
        result = through(inputs, function)
    except (TypeError, AttributeError, NotImplementedError) as error:  # no floating-point tensor, …
        raise refused(refusal) from error
    if through == representation.linearised:
        place = f" in module '{refusal.module}'" if refusal.module else ""
        watch.linearised.setdefault(f"{refusal.operation}{place}")
    if isinstance(result[0], Tensor):
        return wrap(*result)
    return tuple(None if part is None else wrap(*part) for part in result)


def _responds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(x.cov.responds and x.loc.requires_grad for x in random_arguments(args, kwargs))


def _refuse_out(operation: Operation) -> None:
    refusal = UnsupportedOperation(
        name_of(operation),
        reason="its rule does not know these arguments (out= is a plain tensor, which cannot take on a "
        "random value)",
        remedy="Take the value that the operation returns.",
        module=calling_module(),
    )
    raise refused(refusal)


def _refuse_script(operation: Operation) -> None:
    if isinstance(operation, torch._C.ScriptMethod):
        raise refused(
            TypeError(
                f"{calling_module() or 'a model'} is compiled by TorchScript and takes tensors only; "
                "ua.propagate captures such a model with torch.export"
            )
        )


def _check_arguments(
    rule: Rule,
    operation: Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: TypeError,
) -> None:
    """Whether an error comes from arguments that the rule has no place for."""
    try:
        inspect.signature(rule.function).bind(*args, **kwargs)
    except TypeError as mismatch:
        raise UnsupportedOperation(
            name_of(operation),
            reason=f"its rule does not know these arguments ({mismatch})",
            remedy="Call it with the arguments of its usual form.",
        ) from error


def _check_target(operation: Operation, target: Any) -> None:
    if not isinstance(target, Handle):
        raise UnsupportedOperation(
            name_of(operation),
            reason="a plain tensor cannot take on a random value in place",
            remedy="Write x = x + y instead of x += y, or start from ua.Gaussian(x, var=0).",
        )


def _check_kind(operation: Operation, kind: Kind) -> None:
    """Whether an operation of this kind can work in place."""
    if isinstance(kind, Select):
        raise UnsupportedOperation(
            name_of(operation),
            reason="a Gaussian does not change its shape or dtype in place",
            remedy="Write x = x.unsqueeze(0) instead of x.unsqueeze_(0), and likewise.",
        )


def _link_monotone(
    result: Handle,
    kind: Elementwise | Linear,
    operation: Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inplace: bool,
) -> None:
    """Remember what an increasing function was given; of a linear one, if that is one's value itself."""
    (x,) = kind.inputs
    if not isinstance(x, Handle) or not x.cov.maximum_first:
        return
    if isinstance(kind, Linear) and x.monotone_of is None:
        return
    constants = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    traced = torch.compiler.is_compiling()
    if not traced and any(constant.is_inference() for constant in constants):
        return  # it could be modified in place, and nothing would tell
    operand = x.snapshot()
    if inplace:  # not the target itself, which would refer to itself
        args = (operand, *args[1:])
    function = partial(_on_random, operation, args, kwargs, operand if inplace else x)
    result.link_monotone(operand, function, constants)


def _on_random(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], operand: Any, value: Any
) -> Any:
    """The operation with another value in its random operand's place.

    Not by calling it: a method of a tensor takes tensors only.

    Returns:
        What it gives for the value.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        kind: Any = type(value)
        return kind.__torch_function__(operation, (kind,), args, kwargs)

    return plain_function(call, args, kwargs, (operand,), False)(value)


def _check_alike(representation: type[Covariance], inputs: tuple[Any, ...]) -> None:
    for other in inputs:
        if type(other.cov) is not representation:
            raise UnsupportedOperation(
                "",
                reason="its operands carry different representations of covariance, "
                f"{representation.__name__} and {type(other.cov).__name__}",
                remedy="Start both from the same kind of ua.Gaussian.",
            )


def _selected(kind: Select, result: Any, wrap: Wrap) -> Any:
    """One or several random tensors, which may be views of the one they were selected from."""
    parent = kind.inputs[0]
    if isinstance(result[0], Tensor):
        value = wrap(*result)
        account_of_selected(kind, (value,))
        _link(value, parent, kind.apply)
        if kind.repeats:
            value.remember_origin(parent, kind.apply)  # type: ignore[arg-type]
        return value
    values = tuple(wrap(*pair) for pair in result)
    account_of_selected(kind, values)
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
