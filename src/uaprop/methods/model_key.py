"""What a model and its arguments are known by, to remember what was found out about them."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from .arguments import Arguments
from .reachable import is_library, is_object, is_ours, named_by, named_globals, own_classes
from .state_records import ScriptAttributes, has_slots

__all__ = ["Verdicts"]

T = TypeVar("T")

_ATOMS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_TENSORS = ("_parameters", "_buffers")
_PARTS = (*_TENSORS, "_modules")
_MOST = 20_000  # values that are looked at


class Verdicts(Generic[T]):
    """What was found out about models, for each with the form of its arguments.

    A model is known by its modules and functions, and by all that they refer to but for the values of
    tensors: attributes, hooks, closures, globals. One that refers to something else is found out about again
    each time.

    Args:
        most: how many are remembered; the one that was asked for least recently is forgotten.
    """

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def of(self, model: Callable[..., Any], arguments: Arguments, find: Callable[[], T]) -> T:
        """What is known, or what ``find`` finds."""
        key = _key(model, arguments)
        if key is None:
            return find()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        found = self._known[key] = find()
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return found


class _Unknown(Exception):
    """Something that a model refers to, and that cannot be compared with what it was."""


def _key(model: Callable[..., Any], arguments: Arguments) -> Hashable | None:
    try:
        reader = _Reader()
        own, form = reader.of(model), reader.of(arguments.constants)
        hooks = [reader.of(found) for found in _global_hooks()]
    except _Unknown:
        return None
    random = tuple((tuple(x.shape), x.dtype, x.device) for x in arguments.gaussians)
    return own, form, tuple(hooks), random, arguments.structure, torch.is_grad_enabled()


class _Reader:
    """Makes something hashable of all that decides what a model does, but for the values of its tensors.

    Modules and functions are told apart by what they are, and everything that they refer to by its value.
    What can be neither is an error: then nothing is remembered.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, value: Any) -> Hashable:
        """What a value is known by.

        Args:
            value: anything.

        Returns:
            Something hashable.

        Raises:
            _Unknown: if there is no such thing.
        """
        if isinstance(value, _ATOMS):
            return type(value), value if value == value else "nan"
        if isinstance(value, Tensor):
            return tuple(value.shape), value.dtype, value.device
        if id(value) in self._seen:
            return "again", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        if len(self._seen) > _MOST:
            raise _Unknown
        if isinstance(value, nn.Module):
            return weakref.ref(value), tuple(self._module(module) for module in value.modules())
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return self.of(value.__self__), self.of(value.__func__)
        if isinstance(value, functools.partial):
            return self.of(value.func), self.of(value.args), self.of(value.keywords)
        found = self._collection(value)
        return self._object(value) if found is None else found

    def _collection(self, value: Any) -> Hashable | None:
        """Of a list, tuple, dict or set; None if it is nothing of these."""
        if isinstance(value, list | tuple):
            return type(value), tuple([self.of(each) for each in value])
        if isinstance(value, dict):
            return type(value), tuple([(self.of(k), self.of(v)) for k, v in value.items()])
        if isinstance(value, set | frozenset):
            return type(value), frozenset([self.of(each) for each in value])
        return None

    def _object(self, value: Any) -> Hashable:
        """Of anything else: a class, a function that is not in Python, an object of a class of one's own."""
        if isinstance(value, BuiltinFunctionType | ModuleType):
            return id(value)
        if isinstance(value, type):
            kept: Any = weakref.ref(value)
            return kept
        if not is_object(value) or not hasattr(value, "__dict__") or has_slots(type(value)):
            raise _Unknown
        kind = self._class(type(value))
        return weakref.ref(type(value)), kind, self.of(vars(value))

    def _module(self, module: nn.Module) -> Hashable:
        if isinstance(module, torch.jit.ScriptModule):  # whose code does not change
            return module.training, self.of(ScriptAttributes(module).saved)
        attributes = vars(module)
        found = [
            (name, self.of(value))
            for name, value in attributes.items()
            if name not in _PARTS and not (isinstance(value, dict) and not value)
        ]
        tensors = [
            (name, value is None) for part in _TENSORS for name, value in attributes[part].items()
        ]
        kind: Any = type(module)
        return (
            kind,
            tuple(attributes["_modules"]),
            *found,
            *tensors,
            self._class(type(module)),
        )

    def _class(self, kind: type) -> Hashable:
        """What a class and those it is derived from hold, and the globals that their methods name."""
        held = [
            (name, _identity(value) if _is_method(value) else self.of(value))
            for owner in own_classes(kind)
            for name, value in vars(owner).items()
            if not name.startswith("__")
        ]
        named = [
            (name, self.of(values.get(name)))
            for owner in own_classes(kind)
            for values, name in named_globals(owner)
        ]
        return tuple(held), tuple(named)

    def _function(self, function: FunctionType) -> Hashable:
        if is_library(function):
            return weakref.ref(function)
        try:
            inside = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError as error:  # not assigned yet
            raise _Unknown from error
        inside += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if not is_ours(function):  # ours name no model
            inside += named_by(function)
        return weakref.ref(function.__code__), tuple([self.of(value) for value in inside])


def _is_method(value: Any) -> bool:
    return callable(value) or any(hasattr(type(value), name) for name in ("__get__", "__set__"))


def _identity(value: Any) -> Hashable:
    """Of a method, or a property."""
    code = getattr(value, "__code__", None)
    return id(value) if code is None else weakref.ref(code)


def _global_hooks() -> list[Any]:
    return [dict(each) for each in (hooks._global_forward_hooks, hooks._global_forward_pre_hooks)]
