"""The many names of one operation: methods, functions and in-place forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..registry import RULES, Rule, lookup
from .aten import is_operator, rule_of_operator

__all__ = ["IN_PLACE", "name_of", "resolve"]

Operation = Callable[..., Any]


def name_of(operation: Operation) -> str:
    """The name people know an operation by, such as ``torch.nn.functional.relu``."""
    if is_operator(operation):
        return f"torch.ops.{operation}"
    name = getattr(operation, "__name__", repr(operation))
    for owner, prefix in (
        (torch, "torch"),
        (F, "torch.nn.functional"),
        (torch.Tensor, "torch.Tensor"),
    ):
        if getattr(owner, name, None) is operation:
            return f"{prefix}.{name}"
    for candidate, value in vars(F).items():  # boolean_dispatch hides the name
        if value is operation:
            return f"torch.nn.functional.{candidate}"
    return torch.overrides.resolve_name(operation) or name


def _in_place_forms() -> dict[Operation, list[Operation]]:
    """Every in-place operation of torch with the plain functions of the same name."""
    owners = (torch.Tensor, torch, F)
    forms: dict[Operation, list[Operation]] = {}
    for owner in owners:
        for name in dir(owner):
            if name.endswith("_") and not name.endswith("__"):
                plain = [getattr(o, name[:-1]) for o in owners if hasattr(o, name[:-1])]
                forms[getattr(owner, name)] = plain
    return forms


IN_PLACE = _in_place_forms()
_ALWAYS_IN_PLACE = frozenset(
    {torch.Tensor.__setitem__, torch.Tensor.copy_, torch.Tensor.fill_, torch.Tensor.zero_}
)


def _reflected_division(input: Any, other: Any) -> Any:
    return torch.div(other, input)


# Methods written in Python: torch.compile knows them by identity, but does not find them in a table.
_PYTHON_METHODS = (
    (torch.Tensor.__rsub__, lookup(torch.rsub)),
    (torch.Tensor.__rtruediv__, Rule(_reflected_division, exact=True, source="")),
)


def resolve(operation: Operation) -> tuple[Rule | None, bool]:
    """The rule for an operation and whether this spelling of it works in place."""
    found = RULES.get(operation)
    if found is not None:
        return found, operation in _ALWAYS_IN_PLACE
    if is_operator(operation):
        return rule_of_operator(operation)
    for method, known in _PYTHON_METHODS:
        if operation is method:
            return known, False
    for plain in IN_PLACE.get(operation, ()):
        found = lookup(plain)
        if found is not None:
            return found, True
    return None, False
