"""The modules that a callable runs, and the tensors it has: its own, and those that a function refers to.

``ua.propagate(lambda x: net(x).softmax(1), x)`` runs ``net``, which is in a closure or among the globals of
the function. Followed are closures, the globals and module attributes that a function's code names, default
values, ``functools.partial``, bound methods, ``__wrapped__`` and callable objects.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "has_state",
    "is_array",
    "is_generator",
    "is_library",
    "is_object",
    "is_ours",
    "is_own",
    "modules_of",
    "named_by",
    "named_globals",
    "own_classes",
    "roots_of",
    "stateful",
]

_REFERRING = (FunctionType, MethodType, functools.partial)
_FOLLOWED = (nn.Module, MethodType, functools.partial)
_NO_OBJECTS = (type, nn.Module, *_REFERRING)
_LIBRARIES = ("torch", "numpy")
_STATELESS = ("torchvision", "timm", "transformers")
_OWN = __name__.partition(".")[0]
_MOST = 1000  # functions that are followed; a model has a handful
_DEPTH = 3  # collections in collections that are looked into


def roots_of(model: Any) -> list[nn.Module]:
    """The modules that a callable refers to, each once; of a module itself.

    Args:
        model: any callable.

    Returns:
        Modules that may be parts of each other.
    """
    return [found for found in stateful(model) if isinstance(found, nn.Module)]


def stateful(model: Any) -> list[Any]:
    """What a callable refers to that has a state, each once; of a module itself.

    Modules, random generators, tensors and arrays, dicts and the variables of a closure that have them.

    Args:
        model: any callable.

    Returns:
        In the order in which they are found.
    """
    if isinstance(model, nn.Module):
        return [model]
    found: list[Any] = []
    seen: dict[int, Any] = {}
    followed = 0
    waiting: list[Any] = [model]
    while waiting and followed < _MOST:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if has_state(value):
            found.append(value)
            continue
        followed += 1
        if isinstance(value, _REFERRING):
            waiting += _referenced(value)
            if isinstance(value, MethodType) and is_object(value.__self__):
                found.append(value.__self__)
            elif isinstance(value, FunctionType):
                found.append(vars(value))  # a function may have attributes, too
        elif is_object(value):
            own = [v for v in _own_values(value) if _is_followed(v)]
            if callable(value):
                found.append(value)
                waiting += own
                waiting += _referenced(vars(type(value)).get("__call__"))
            else:
                found.append(getattr(value, "__dict__", {}))
                waiting += [v for v in own if has_state(v)]
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
    elif isinstance(function, FunctionType) and not is_library(function):
        for cell in function.__closure__ or ():
            try:
                found += [cell, cell.cell_contents]
            except ValueError:  # not assigned yet
                continue
        found += function.__defaults__ or ()
        found += (function.__kwdefaults__ or {}).values()
        if not is_ours(function):  # which name no model
            found += named_by(function)
        if hasattr(function, "__wrapped__"):
            found.append(function.__wrapped__)
    return [value for each in found for value in _elements(each) if _is_followed(value)]


def named_by(function: FunctionType) -> Iterator[Any]:
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


def _elements(value: Any, depth: int = _DEPTH) -> list[Any]:
    """A value, and the elements of a small collection, or of those in it."""
    if not isinstance(value, list | tuple | dict) or len(value) > _MOST or depth == 0:
        return [value]
    values = list(value.values()) if isinstance(value, dict) else list(value)
    return [value, *(element for each in values for element in _elements(each, depth - 1))]


def _is_followed(value: Any) -> bool:
    if isinstance(value, _FOLLOWED):
        return True
    if isinstance(value, FunctionType):
        return not is_library(value)
    return has_state(value) or is_object(value)


def has_state(value: Any) -> bool:
    """Whether a value is what :func:`stateful` looks for."""
    if isinstance(value, nn.Module | Tensor | dict | CellType):
        return True
    return is_generator(value) or is_array(value)


def is_array(value: Any) -> bool:
    """Whether a value is numpy's array."""
    kind = type(value)
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy"


def is_generator(value: Any) -> bool:
    """Whether a value makes random numbers: torch's, Python's or numpy's."""
    if isinstance(value, torch.Generator | random.Random):
        return True
    return type(value).__module__.startswith("numpy.random")


def is_object(value: Any) -> bool:
    """Whether a value is an object of a class that is neither torch's nor Python's."""
    if isinstance(value, (*_NO_OBJECTS, ModuleType)):
        return False
    kind = type(value)
    return is_own(kind) and (_root(kind.__module__) != _OWN or callable(value))


def is_own(kind: type) -> bool:
    """Whether a class is neither torch's nor Python's."""
    package = _root(kind.__module__)
    return package not in _LIBRARIES and package not in sys.stdlib_module_names


@functools.lru_cache(_MOST)
def own_classes(kind: type) -> tuple[type, ...]:
    """A class and those that it is derived from, without those of libraries that keep no state in them."""
    return tuple(
        owner
        for owner in kind.__mro__
        if is_own(owner) and _root(owner.__module__) not in (*_STATELESS, _OWN)
    )


@functools.lru_cache(_MOST)
def named_globals(kind: type) -> tuple[tuple[dict[str, Any], str], ...]:
    """The globals that a class's methods name, or functions that these call: where, and by which name.

    Modules, functions and classes are left out.

    Args:
        kind: a class.

    Returns:
        The modules' dicts, and the names.
    """
    found: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    waiting: list[Any] = [f for f in vars(kind).values() if isinstance(f, FunctionType)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        function = waiting.pop()
        if id(function) in seen or is_library(function):
            continue
        seen.add(id(function))
        values = function.__globals__
        for name in _names(function.__code__):
            value = values.get(name)
            if isinstance(value, FunctionType):
                waiting.append(value)
            elif name in values and not isinstance(value, ModuleType | type):
                found[id(values), name] = values, name
    return tuple(found.values())


def _root(module: str) -> str:
    return module.partition(".")[0]


def _own_values(value: Any) -> list[Any]:
    attributes = getattr(value, "__dict__", {})
    return [element for each in list(attributes.values()) for element in _elements(each)]


def is_library(function: FunctionType) -> bool:
    """Whether a function is torch's or numpy's."""
    return _package(function) in _LIBRARIES


def is_ours(function: FunctionType) -> bool:
    """Whether it is one of this library."""
    return _package(function) == _OWN


def _is_of_library(name: str) -> bool:
    return name.partition(".")[0] in _LIBRARIES


def _package(function: FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]
