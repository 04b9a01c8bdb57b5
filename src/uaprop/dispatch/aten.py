"""The operators of an exported graph by the rules of the functions they stand for.

``torch.export`` writes ``aten.relu.default`` where a model said ``F.relu``. An operator's schema names its
arguments, and so does a rule; the names are torch's own on both sides and agree, whatever their order.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload, OpOverloadPacket

from ..errors import UnsupportedOperation
from ..registry import Rule, lookup

__all__ = ["is_operator", "rule_of_operator"]

_OWNERS = (F, torch, torch.Tensor, torch.special, torch.linalg, torch._C._nn)
_PREFIXES = {
    "special_": torch.special,
    "linalg_": torch.linalg,
}  # torch.special.ndtr is special_ndtr
# The operator's name of an argument, and a rule's, where they differ.
_SYNONYMS = {"self": ("input", "tensor"), "train": ("training",), "input": ("self",)}
# Arguments that choose between ways to compute the same numbers.
_IMMATERIAL = frozenset(
    {"cudnn_enable", "cudnn_enabled", "non_blocking", "copy", "implicit", "memory_format"}
)


def is_operator(operation: Callable[..., Any]) -> bool:
    """Whether it is one of ``torch.ops``."""
    return isinstance(operation, OpOverload | OpOverloadPacket)


@functools.cache
def rule_of_operator(operator: OpOverload | OpOverloadPacket) -> tuple[Rule | None, bool]:
    """The rule for an operator of ``torch.ops``, and whether it works in place."""
    packet = operator.overloadpacket if isinstance(operator, OpOverload) else operator
    for known in (operator, packet):
        if (found := lookup(known)) is not None:
            return found, False
    if isinstance(operator, OpOverloadPacket):
        overloads = operator.overloads()
        if "default" not in overloads:
            return None, False
        return rule_of_operator(operator.default)
    namespace, name = operator._schema.name.split("::")
    if namespace != "aten":
        return None, False
    if (found := lookup(getattr(torch.Tensor, name, None))) is not None and name.endswith("_"):
        return _adapted(operator, found), True
    name, inplace = (name[:-1], True) if name.endswith("_") else (name, False)
    for found in _rules_named(name):
        if (adapted := _adapted(operator, found)) is not None:
            return adapted, inplace
    return None, False


def _rules_named(name: str) -> Iterator[Rule]:
    candidates = [getattr(owner, name, None) for owner in (torch.ops.aten, *_OWNERS)]
    for prefix, owner in _PREFIXES.items():
        if name.startswith(prefix):
            candidates.append(getattr(owner, name.removeprefix(prefix), None))
    for known in candidates:
        if known is not None and (found := lookup(known)) is not None:
            yield found


def _is_list(schema: torch.FunctionSchema) -> bool:
    """Whether an operator returns a list of tensors, as many as its arguments say."""
    return len(schema.returns) == 1 and isinstance(schema.returns[0].type, torch.ListType)


def _adapted(operator: OpOverload, rule: Rule) -> Rule | None:
    """The rule with the operator's signature, or None if it has no place for a needed argument."""
    parameters = inspect.signature(rule.function).parameters
    free = [p for p in parameters.values() if p.kind is p.VAR_POSITIONAL]
    if free:  # shapes as numbers: reshape(x, *shape), permute(x, *dims)
        return rule
    names: dict[str, str] = {}
    for i, argument in enumerate(operator._schema.arguments):
        own = argument.name
        fitting = [n for n in (own, *_SYNONYMS.get(own, ())) if n in parameters]
        if fitting:
            names[own] = fitting[0]
        elif i == 0:
            names[own] = next(iter(parameters))
        elif own not in _IMMATERIAL and not argument.has_default_value():
            return None
    schema = operator._schema

    def function(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        named = {names[own]: value for own, value in given.items() if own in names}
        for argument in schema.arguments:
            own = argument.name
            known = own in names or own in _IMMATERIAL
            if own in given and not known and given[own] != argument.default_value:
                raise UnsupportedOperation(
                    "", reason=f"its rule does not know the argument {own}={given[own]!r}"
                )
        result = rule.function(**named)
        several = isinstance(result, tuple)
        if several != (len(schema.returns) > 1) and not _is_list(schema):
            raise UnsupportedOperation(
                "", reason=f"its rule gives {'several' if several else 'one'} of its results"
            )
        return result

    function.__name__ = rule.name
    return Rule(function, rule.exact, rule.source)
