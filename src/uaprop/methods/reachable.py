"""The modules that a callable runs: its own, and those that a function refers to.

``ua.propagate(lambda x: net(x).softmax(1), x)`` runs ``net``, which is in a closure or among the globals of
the function. Followed are closures, the globals and module attributes that a function's code names, default
values, ``functools.partial``, bound methods, ``__wrapped__`` and callable objects.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

__all__ = ["is_generator", "modules_of", "roots_of", "stateful"]

_REFERRING = (FunctionType, MethodType, functools.partial)
_FOLLOWED = (nn.Module, MethodType, functools.partial)
_NO_OBJECTS = (type, nn.Module, *_REFERRING)
_LIBRARIES = ("torch", "numpy")
_MOST = 1000  # functions that are followed; a model has a handful


def roots_of(model: Any) -> list[nn.Module]:
    """The modules that a callable refers to, each once; of a module itself.

    Args:
        model: any callable.

    Returns:
        Modules that may be parts of each other.
    """
    return [found for found in stateful(model) if isinstance(found, nn.Module)]


def stateful(model: Any) -> list[Any]:
    """The modules and random generators that a callable refers to, each once; of a module itself."""
    if isinstance(model, nn.Module):
        return [model]
    found: list[Any] = []
    seen: dict[int, Any] = {}
    waiting: list[Any] = [model]
    while waiting and len(seen) < _MOST:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, nn.Module) or is_generator(value):
            found.append(value)
        elif isinstance(value, _REFERRING):
            waiting += _referenced(value)
        elif _is_object(value):
            waiting += [v for v in _own_values(value) if _is_followed(v)]
            waiting += _referenced(vars(type(value)).get("__call__"))
    return found


def modules_of(model: Any) -> Iterator[nn.Module]:
    """All modules that a callable runs, each once."""
    seen: set[int] = set()
    for root in roots_of(model):
        for module in root.modules():
            if id(module) not in seen:
                seen.add(id(module))
                yield module


def _referenced(function: Any) -> list[Any]:
    """What a function, bound method or partial refers to that may be, or may run, a module."""
    found: list[Any] = []
    if isinstance(function, functools.partial):
        found += [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, MethodType):
        found += [function.__self__, function.__func__]
    elif isinstance(function, FunctionType) and not _is_library(function):
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue
        found += function.__defaults__ or ()
        found += (function.__kwdefaults__ or {}).values()
        if _package(function) != __name__.partition(".")[0]:  # ours name no model
            found += _named(function)
        if hasattr(function, "__wrapped__"):
            found.append(function.__wrapped__)
    return [value for each in found for value in _elements(each) if _is_followed(value)]


def _named(function: FunctionType) -> Iterator[Any]:
    """The globals that a function's code names, and what it names of those that are Python modules."""
    names = list(_names(function.__code__))
    values = function.__globals__
    for name in names:
        value = values.get(name)
        if isinstance(value, ModuleType):
            if not _is_of_library(value.__name__):
                inside = vars(value)
                yield from (inside[other] for other in names if other in inside)
        elif value is not None:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # a function inside of the function
            yield from _names(constant)


def _elements(value: Any) -> list[Any]:
    """A value, and the elements of a small collection of modules."""
    if isinstance(value, list | tuple) and len(value) <= _MOST:
        return [*value]
    if isinstance(value, dict) and len(value) <= _MOST:
        return [*value.values()]
    return [value]


def _is_followed(value: Any) -> bool:
    if isinstance(value, _FOLLOWED):
        return True
    if isinstance(value, FunctionType):
        return not _is_library(value)
    return is_generator(value) or _is_object(value)


def is_generator(value: Any) -> bool:
    """Whether a value makes random numbers: torch's, Python's or numpy's."""
    if isinstance(value, torch.Generator | random.Random):
        return True
    return type(value).__module__.startswith("numpy.random")


def _is_object(value: Any) -> bool:
    """Whether a value is a callable object with attributes: a model that is no module."""
    kind = type(value)
    return (
        callable(value)
        and not isinstance(value, _NO_OBJECTS)
        and not _is_of_library(kind.__module__)
        and kind.__module__ not in ("builtins", "functools")
        and hasattr(value, "__dict__")
    )


def _own_values(value: Any) -> list[Any]:
    return [element for each in list(vars(value).values()) for element in _elements(each)]


def _is_library(function: FunctionType) -> bool:
    return _package(function) in _LIBRARIES


def _is_of_library(name: str) -> bool:
    return name.partition(".")[0] in _LIBRARIES


def _package(function: FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]
