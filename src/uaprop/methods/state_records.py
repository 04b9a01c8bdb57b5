"""Notes of one object's state, each with a way to put it back."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sized
from operator import is_
from types import CellType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..kinds import Random

__all__ = [
    "Attributes",
    "Buffer",
    "Cell",
    "ClassAttributes",
    "Contents",
    "Generator",
    "Items",
    "ParameterFlags",
    "Record",
    "ScriptAttributes",
    "Slots",
    "TensorEntries",
    "generator_state",
    "has_slots",
]


class Record(Protocol):
    """The state of one object."""

    def restore(self) -> None:
        """Put it back."""


class Attributes:
    """The attributes of a module or another object, and the entries of the dicts among them.

    A module has a dozen dicts, most of them empty, which take no copy.
    """

    __slots__ = ("_attributes", "_empty", "_entries")

    def __init__(self, attributes: dict[str, Any], dicts: list[dict[Any, Any]]) -> None:
        self._attributes = _Entries(attributes)
        self._empty = [value for value in dicts if not value]
        self._entries = [_Entries(value) for value in dicts if value]

    def restore(self) -> None:
        """Put back what was assigned, deleted or added."""
        self._attributes.restore()
        for entries in self._entries:
            entries.restore()
        for added in filter(None, self._empty):
            added.clear()


class _Entries:
    """The entries of a dict."""

    __slots__ = ("_keys", "_now", "_values")

    def __init__(self, now: dict[Any, Any]) -> None:
        self._now = now
        items = list(now.items())  # at once: another thread may run the model
        self._keys, self._values = [key for key, _ in items], [value for _, value in items]

    def restore(self) -> None:
        """Put them back, if one was assigned, deleted or added."""
        now, keys, values = self._now, self._keys, self._values
        if len(now) == len(keys) and all(map(is_, now.values(), values)) and list(now) == keys:
            return
        saved = dict(zip(keys, values, strict=True))
        now.update(saved)
        for key in [key for key in now if key not in saved]:
            del now[key]
        if list(now) != keys:  # what was deleted has come back at the end
            now.clear()
            now.update(saved)


class Items:
    """The elements of a dict, a list, a set or a deque."""

    __slots__ = ("_items", "_saved")

    def __init__(self, items: list[Any] | set[Any] | deque[Any] | dict[Any, Any]) -> None:
        self._items = items
        self._saved = _Entries(items) if isinstance(items, dict) else list(items)

    def restore(self) -> None:
        """Put back what was added, removed or replaced."""
        items, saved = self._items, self._saved
        if isinstance(saved, _Entries):
            saved.restore()
        elif isinstance(items, set):
            if items != set(saved):
                items.clear()
                items.update(saved)
        elif not _identical(items, saved):
            items.clear()
            items.extend(saved)  # type: ignore[union-attr]


class TensorEntries:
    """The tensors of a dict that a function has, which may be the user's notes as well.

    What is no tensor stays as it is: counts and lists of a caller who wants to see how the model is run.
    """

    __slots__ = ("_entries", "_saved")

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries
        self._saved = dict(list(entries.items()))

    def restore(self) -> None:
        """Put back tensors, and what tensors were assigned in place of; take out those that were added."""
        entries, saved = self._entries, self._saved
        for key in [key for key, value in entries.items() if _is_value(value)]:
            if key not in saved:
                del entries[key]
            elif entries[key] is not saved[key]:
                entries[key] = saved[key]
        for key, value in saved.items():
            if _is_value(value) and entries.get(key) is not value:
                entries[key] = value


class Slots:
    """The attributes of an object that are not in a dict."""

    __slots__ = ("_unset", "_value", "saved")

    def __init__(self, value: Any) -> None:
        self._value = value
        self.saved = {}
        self._unset = []
        for name in _slots(type(value)):
            try:
                self.saved[name] = getattr(value, name)
            except AttributeError:  # not assigned yet
                self._unset.append(name)

    @property
    def is_empty(self) -> bool:
        """Whether there are none, assigned or not."""
        return not (self.saved or self._unset)

    def restore(self) -> None:
        """Put back what was assigned or deleted, and take out what was added."""
        for name, saved in self.saved.items():
            if getattr(self._value, name, self) is not saved:
                object.__setattr__(self._value, name, saved)
        for name in self._unset:
            if hasattr(self._value, name):
                object.__delattr__(self._value, name)


def _slots(kind: Any) -> Iterator[str]:
    for owner in kind.__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            yield f"_{owner.__name__.lstrip('_')}{name}" if private else name


class ClassAttributes:
    """What a class holds, but for its functions and what Python has put there."""

    __slots__ = ("_kind", "saved")

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.saved = {
            name: value
            for name, value in list(vars(kind).items())
            if not name.startswith("__") and not _is_of_class(value)
        }

    def restore(self) -> None:
        """Put back what was assigned, deleted or added."""
        now = vars(self._kind)
        for name, value in self.saved.items():
            if now.get(name, self) is not value:
                setattr(self._kind, name, value)
        for name, value in list(now.items()):
            if name not in self.saved and not name.startswith("__") and not _is_of_class(value):
                delattr(self._kind, name)


def has_slots(kind: type) -> bool:
    """Whether objects of a class have attributes that are not in a dict."""
    return next(_slots(kind), None) is not None


def _is_of_class(value: Any) -> bool:
    """Whether a class's attribute is a method, a property or another descriptor."""
    return callable(value) or any(
        hasattr(type(value), name) for name in ("__get__", "__set__", "__delete__")
    )


class Buffer:
    """The contents of a ``bytearray`` or an ``array.array``."""

    __slots__ = ("_buffer", "_saved")

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._saved = buffer[:]

    def restore(self) -> None:
        """Put them back."""
        if self._buffer != self._saved:
            self._buffer[:] = self._saved


class Cell:
    """A variable of a closure that is a tensor, or becomes one."""

    __slots__ = ("_cell", "_saved")

    def __init__(self, cell: CellType) -> None:
        self._cell = cell
        self._saved = cell.cell_contents

    def restore(self) -> None:
        """Put it back, if it was assigned."""
        if _is_value(self._saved) or _is_value(self._cell.cell_contents):
            self._cell.cell_contents = self._saved


def _is_value(value: Any) -> bool:
    return isinstance(value, Tensor | Random)


def _identical(a: Sized, b: Sized) -> bool:
    return len(a) == len(b) and all(map(is_, a, b))  # type: ignore[call-overload]


class Contents:
    """The values of a tensor that a model may write to.

    Batch norm writes to its statistics without counting a version, so that values have to be compared. What
    is put back without a new version does not spoil a graph that the caller holds.
    """

    __slots__ = ("_saved", "_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._saved = (tensor.detach() if tensor.requires_grad else tensor).clone()
        self._version = _version(tensor)

    def restore(self) -> None:
        """Write the values back, if they have changed."""
        tensor, saved = self._tensor, self._saved
        if tensor.grad_fn is not None and not tensor._is_view():
            tensor.detach_()  # a value with gradients was written to it
        if tensor.shape == saved.shape and _equal(tensor, saved):
            return
        counted = _version(tensor) != self._version
        with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
            plain = tensor.detach() if counted or tensor.is_inference() else tensor.data
            if plain.shape != saved.shape or plain.dtype != saved.dtype:
                tensor.data = saved.clone()  # it was resized
            else:
                plain.copy_(saved)  # ``data`` has a version counter of its own


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _equal(a: Tensor, b: Tensor) -> bool:
    try:
        return torch.equal(a, b)
    except (RuntimeError, NotImplementedError):  # sparse and other layouts
        return False


class ParameterFlags:
    """What a parameter has beside its values."""

    __slots__ = ("_data", "_grad", "_requires_grad", "_version", "parameter")

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self._data = parameter.data
        self._grad = parameter.grad
        self._requires_grad = parameter.requires_grad
        self._version = _version(parameter)

    @property
    def was_written(self) -> bool:
        """Whether its values were changed in place."""
        return _version(self.parameter) != self._version

    def restore(self) -> None:
        """Put back ``data``, ``grad`` and ``requires_grad``."""
        if not _is_same_memory(self.parameter, self._data):
            self.parameter.data = self._data
        if self.parameter.requires_grad != self._requires_grad:
            self.parameter.requires_grad_(self._requires_grad)
        if self.parameter.grad is not self._grad:
            self.parameter.grad = self._grad


def _is_same_memory(a: Tensor, b: Tensor) -> bool:
    if a.layout is not torch.strided or a.is_meta or b.is_meta:
        return True
    try:
        return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    except (RuntimeError, NotImplementedError):  # of a subclass without memory
        return True


class ScriptAttributes:
    """The attributes of a module compiled by TorchScript, which are not in Python."""

    __slots__ = ("_module", "saved")

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self._module: Any = module._c
        names = module._concrete_type.get_attributes()
        self.saved = {name: self._module.getattr(name) for name in names}

    def restore(self) -> None:
        """Put back what was assigned."""
        for name, value in self.saved.items():
            now = self._module.getattr(name)
            if now is not value and (isinstance(value, Tensor) or now != value):
                self._module.setattr(name, value)


def generator_state(generator: Any) -> Any:
    """The state of a random generator of torch, Python or numpy; None if it has none that can be read."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    inner = getattr(generator, "bit_generator", None)
    if inner is not None:
        return inner.state
    return generator.get_state() if hasattr(generator, "get_state") else None


class Generator:
    """The state of a random generator that a model has of its own."""

    __slots__ = ("_saved", "generator")

    def __init__(self, generator: Any, state: Any) -> None:
        self.generator = generator
        self._saved = state

    @property
    def was_used(self) -> bool:
        """Whether it has made random numbers since."""
        now = generator_state(self.generator)
        if isinstance(now, Tensor):
            return not torch.equal(now, self._saved)
        return repr(now) != repr(self._saved)

    def restore(self) -> None:
        """Put it back."""
        if isinstance(self.generator, torch.Generator):
            self.generator.set_state(self._saved)
        elif isinstance(self.generator, random.Random):
            self.generator.setstate(self._saved)
        elif hasattr(self.generator, "bit_generator"):
            self.generator.bit_generator.state = self._saved
        else:
            self.generator.set_state(self._saved)


def is_max_norm(module: nn.Module) -> bool:
    """Whether a module writes to its weight when it runs, as an embedding with ``max_norm`` does."""
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None
