"""What a model and the process are like before a run, put back afterwards.

A propagation runs the model, often many times, and a model has state: batch statistics, moving averages,
caches and counters that ``forward`` assigns. :func:`preserved` takes note of all that is reachable from a
model and puts it back, also when an exception passes through.

Protected: what modules hold (attributes, buffers, parameters by identity, hooks, modes; lists, dicts, sets,
deques, dataclasses and other objects, generators, arrays and plain tensors in attributes), the tensors that
a function refers to or a callable object has, the ``grad`` and ``requires_grad`` of parameters, and what
:mod:`~uaprop.methods.process_state` lists. Not protected: what a function counts or appends to; the values of
parameters that ``forward`` writes to in place, except those of an embedding with ``max_norm``. To copy all
parameters would take longer than to run the model; a warning says so.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import is_dataclass
from types import CellType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.modules import module as hooks
from torch.nn.parameter import is_lazy

from ..numerics.moments import is_transformed
from .concurrent_runs import RUNS, Key
from .process_state import ProcessState, thread_settings
from .reachable import is_array, is_generator, is_object, roots_of, stateful
from .state_records import (
    Attributes,
    Cell,
    Contents,
    Generator,
    Items,
    ParameterFlags,
    Record,
    ScriptAttributes,
    TensorEntries,
    generator_state,
    is_max_norm,
)
from .training_mode import warn_if_training
from .user_warning import warn_user

__all__ = ["ModelState", "current_state", "preserved"]

_ATOMS = frozenset({bool, int, float, str, bytes, type(None), complex, torch.dtype, torch.device})
_COLLECTIONS, _CONSTANT = (list, set, deque, dict), (tuple, frozenset)
_MOST_ITEMS = 10_000  # of a collection whose elements are looked at, too
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_current: ContextVar[ModelState | None] = ContextVar("uaprop_model_state", default=None)


class ModelState:
    """Notes of everything that running a model may change, except for the values of parameters.

    Args:
        model: any callable.
        values: whether to copy the values of buffers and other tensors; otherwise they are kept by identity.

    Attributes:
        own_code: whether the model has Python code other than torch's layers.
        records: notes by the number of what they are of.
    """

    def __init__(self, model: Any, values: bool = True) -> None:
        self.records: dict[Key, Record] = {}
        self._values = values
        self._seen: dict[int, Any] = {}  # held, so that a number belongs to one object
        self._inside = False  # of an object that is no module
        self.own_code = not (isinstance(model, nn.Module) and all(map(_is_plain, model.modules())))
        if isinstance(model, ExportedProgram):
            self._visit({**model.state_dict, **model.constants})
        elif not self.own_code:
            for module in model.modules():
                self._statistics(module)
        if self.own_code:
            self._referenced(model)

    @property
    def generators(self) -> list[Generator]:
        """The random generators that the model has of its own."""
        return [record for record in self.records.values() if isinstance(record, Generator)]

    @property
    def written(self) -> list[Tensor]:
        """The parameters whose values were changed in place, and are not put back."""
        return [
            record.parameter
            for (key, _), record in self.records.items()
            if isinstance(record, ParameterFlags)
            and record.was_written
            and (key, Contents) not in self.records
        ]

    def restore(self) -> None:
        """Put everything back."""
        for record in self.records.values():
            record.restore()

    def _statistics(self, module: nn.Module) -> None:
        """What one of torch's layers may change: its statistics while training, a weight of bounded norm."""
        if module.training:
            for buffer in module._buffers.values():
                self._visit(buffer)
        if is_max_norm(module) and self._values:
            self._note(module.weight, Contents(module.weight))  # type: ignore[arg-type]

    def _note(self, value: Any, record: Record) -> None:
        self.records[id(value), type(record)] = record

    def _visit(self, value: Any) -> None:
        if type(value) in _ATOMS or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, _COLLECTIONS):
            self._note(value, Items(value))
            self._visit_all(value)
        elif isinstance(value, _CONSTANT):
            self._visit_all(value)
        elif isinstance(value, SimpleNamespace) or (
            is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")
        ):
            self._object(value, vars(value))
        elif is_generator(value):
            state = generator_state(value)
            if self._values and state is not None:
                self._note(value, Generator(value, state))
        elif is_array(value):
            self._array(value)
        elif is_object(value) and not self._inside:
            self._inside = True  # objects of objects may be a whole program
            self._object(value, vars(value))
            self._inside = False
        elif callable(value):
            self._referenced(value)

    def _referenced(self, function: Any) -> None:
        """What a callable refers to."""
        for found in stateful(function):
            if isinstance(found, dict):
                self._note(found, TensorEntries(found))
            elif isinstance(found, CellType):
                self._note(found, Cell(found))
            else:
                self._visit(found)

    def _visit_all(self, values: Any) -> None:
        if len(values) <= _MOST_ITEMS:
            # a copy, which another thread that runs the model does not change
            for element in list(values.values() if isinstance(values, dict) else values):
                self._visit(element)

    def _object(self, value: Any, attributes: dict[str, Any]) -> None:
        dicts = []
        for attribute in list(attributes.values()):
            if type(attribute) in _ATOMS:
                continue
            if not isinstance(attribute, dict):
                self._visit(attribute)
                continue
            dicts.append(attribute)
            if attribute:
                self._seen[id(attribute)] = attribute
                self._visit_all(attribute)
        self._note(value, Attributes(attributes, dicts))

    def _module(self, module: nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            script = ScriptAttributes(module)
            self._note(module, script)
            for value in script.saved.values():
                self._visit(value)
            for child in module.children():
                self._visit(child)
            return
        if is_max_norm(module) and self._values:
            weight: Any = module.weight
            self._note(weight, Contents(weight))
        self._object(module, vars(module))

    def _array(self, array: Any) -> None:
        if self._values and array.flags.writeable:
            with contextlib.suppress(TypeError, ValueError):  # of a type that torch does not have
                self._note(array, Contents(torch.from_numpy(array)))

    def _tensor(self, tensor: Tensor) -> None:
        if is_lazy(tensor):
            raise ValueError(
                "the model has parameters without a shape (nn.Lazy…), which its first run makes; "
                "run it once on a plain tensor before"
            )
        if isinstance(tensor, nn.Parameter):
            self._note(tensor, ParameterFlags(tensor))
        elif self._values and not tensor.is_meta and not tensor.requires_grad:
            try:
                record = Contents(tensor)
            except (RuntimeError, NotImplementedError):
                return  # what cannot be copied cannot be written to either
            self._note(tensor, record)


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is one of torch's layers, unchanged: then it is known what it does."""
    attributes = vars(module)
    return (
        type(module).__module__.startswith("torch.nn.modules.")
        and "forward" not in attributes
        and not any(attributes.get(name) for name in _HOOKS)
        and not hooks._global_forward_hooks
        and not hooks._global_forward_pre_hooks
    )


@contextlib.contextmanager
def preserved(model: Any) -> Iterator[ModelState]:
    """Leave model and process as they are, whatever is run inside.

    Where several threads run the same model at once, the last to leave puts it back.

    Args:
        model: any callable on tensors, or a program of ``torch.export``.

    Yields:
        The notes that were taken.

    Raises:
        ValueError: if the model has parameters without a shape, which its first run would make.
    """
    values = not is_transformed()
    outermost = _current.get() is None
    if outermost:
        warn_if_training(model)
    state: ModelState

    def take() -> dict[Key, Record]:
        nonlocal state
        state = ModelState(model, values)
        if not values:
            return state.records
        return {**state.records, (0, ProcessState): ProcessState(state.own_code)}

    run = RUNS.enter(take)
    token = _current.set(state)
    try:
        with thread_settings():
            yield state
    finally:
        _current.reset(token)
        written = state.written
        RUNS.leave(run)
    if written and outermost:
        warn_user(_writes(model, written))


def current_state() -> ModelState | None:
    """The notes of the innermost run that is going on in this thread."""
    return _current.get()


def _writes(model: Any, parameters: list[Tensor]) -> str:
    numbers = {id(parameter) for parameter in parameters}
    names = [
        name
        for root in roots_of(model)
        for name, parameter in root.named_parameters()
        if id(parameter) in numbers
    ]
    return (
        f"the model writes to its own parameters when it runs ({', '.join(names[:3])}), and their "
        "values are not as they were before. Keep such values in a buffer, or propagate a copy of the model."
    )
