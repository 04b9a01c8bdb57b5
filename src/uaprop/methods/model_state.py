"""What a model and the process are like before a run, put back afterwards.

A propagation runs the model, often many times, and a model has state: batch statistics, moving averages,
caches and counters that ``forward`` assigns. :func:`preserved` takes note of all that is reachable from a
model and puts it back, also when an exception passes through.

Protected: what modules hold (attributes, buffers, parameters, hooks, modes; lists, dicts, sets, deques,
dataclasses and other objects, generators, arrays and plain tensors in attributes, and what these hold in
turn), the attributes of their classes, the arguments, the tensors that a function refers to, what a callable
object has, and what :mod:`~uaprop.methods.process_state` lists. Parameters are copied when an operation is
about to write to them (:class:`ParameterWrites`): to copy all of them would take as much memory again.

Not protected: what a function counts or appends to, iterators, and what only compiled code sees. Whether that
matters is found out (:mod:`~uaprop.methods.tensor_branches`).
"""

from __future__ import annotations

import contextlib
from array import array
from collections import UserDict, UserList, deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import is_dataclass
from types import CellType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.nn.modules import module as hooks
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..numerics.draws import own_draws
from ..numerics.moments import is_transformed
from .concurrent_runs import RUNS, Key
from .process_state import ProcessState, thread_settings
from .reachable import (
    has_state,
    is_array,
    is_generator,
    is_object,
    named_globals,
    own_classes,
    roots_of,
    stateful,
)
from .state_records import (
    Attributes,
    Buffer,
    Cell,
    ClassAttributes,
    Contents,
    Generator,
    Items,
    ParameterFlags,
    Record,
    ScriptAttributes,
    Slots,
    TensorEntries,
    generator_state,
    is_max_norm,
)
from .training_mode import warn_if_training
from .user_warning import warn_user

__all__ = ["ModelState", "ParameterWrites", "current_state", "preserved", "trial"]

_ATOMS = frozenset({bool, int, float, str, bytes, type(None), complex, torch.dtype, torch.device})
_COLLECTIONS, _CONSTANT = (list, set, deque, dict), (tuple, frozenset)
_MOST_ITEMS = 10_000  # of a collection whose elements are looked at, too
_MOST_OBJECTS = 20_000  # that are looked at in all
_BUFFERS = (bytearray, array)
_PLAIN = (Tensor, nn.Parameter)
_WRAPPERS = (UserDict, UserList, WeakKeyDictionary, WeakValueDictionary)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_current: ContextVar[ModelState | None] = ContextVar("uaprop_model_state", default=None)


class ModelState:
    """Notes of everything that running a model may change, except for the values of parameters.

    Args:
        model: any callable.
        arguments: what it is called with, those that are not random.
        values: whether to copy the values of buffers and other tensors; otherwise they are kept by identity.

    Attributes:
        own_code: whether the model has Python code other than torch's layers.
        records: notes by the number of what they are of.
        copies: those of them that were taken while the model ran.
    """

    def __init__(self, model: Any, arguments: Sequence[Any] = (), values: bool = True) -> None:
        self.records: dict[Key, Record] = {}
        self.copies: dict[Key, Record] = {}
        self._values = values
        self._seen: dict[int, Any] = {}  # held, so that a number belongs to one object
        self._was_run = False
        self._waiting: list[Any] = []  # to be looked at; not by recursion: a list may be linked
        self.own_code = not (isinstance(model, nn.Module) and all(map(_is_plain, model.modules())))
        if isinstance(model, ExportedProgram):
            self._visit({**model.state_dict, **model.constants})
        elif not self.own_code:
            for module in model.modules():
                self._statistics(module)
        if self.own_code:
            self._referenced(model)
            self._visit_all(arguments)
        while self._waiting:
            self._look(self._waiting.pop())

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

    def start_pass(self) -> None:
        """Put everything back before the model is run again, except for its random generators.

        What a pass leaves in a counter, a cache or a moving average must not reach the next one: every sample
        is of the model as it was given. Torch's own layers do not read what they write.
        """
        if self._was_run:
            self.end_pass()
        self._was_run = True

    def end_pass(self) -> None:
        """Put back what a pass has changed, except for the model's random generators."""
        if self.own_code:
            # modes watch what the model does, and this is not the model
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                for record in self.records.values():
                    if not isinstance(record, Generator):
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

    def copy_parameter(self, parameter: nn.Parameter) -> None:
        """Copy the values of a parameter that is about to be written to."""
        key = id(parameter), Contents
        if self._values and key not in self.records:
            self.records[key] = self.copies[key] = Contents(parameter)

    def _visit(self, value: Any) -> None:
        if type(value) not in _ATOMS:
            self._waiting.append(value)

    def _look(self, value: Any) -> None:
        known = type(value) in _ATOMS or id(value) in self._seen
        if known or len(self._seen) > _MOST_OBJECTS:
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
        elif isinstance(value, _BUFFERS):
            self._note(value, Buffer(value))
        elif isinstance(value, _WRAPPERS) or is_object(value):
            self._object(value, vars(value) if hasattr(value, "__dict__") else {})
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

    def _class(self, kind: type) -> None:
        """What the classes of an object hold for all of its kind, and the globals that their methods name."""
        for owner in own_classes(kind):
            if id(owner) in self._seen:
                continue
            self._seen[id(owner)] = owner
            attributes = ClassAttributes(owner)
            if attributes.saved:
                self._note(owner, attributes)
                self._visit_all(list(attributes.saved.values()))
            for values, name in named_globals(owner):
                if has_state(found := values.get(name)):
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
        slots = Slots(value)
        if not slots.is_empty:
            self._note(value, slots)
            self._visit_all(list(slots.saved.values()))
        self._class(type(value))

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
        elif self._values and not tensor.is_meta:
            try:
                record = Contents(tensor)
            except (RuntimeError, NotImplementedError):
                return  # what cannot be copied cannot be written to either
            self._note(tensor, record)


class ParameterWrites(TorchDispatchMode):
    """Copies parameters that a pass is about to write to, also by way of ``parameter.data``.

    Args:
        state: what takes the copies.
        model: any callable.

    Attributes:
        seen: whether there were any.
    """

    supports_higher_order_operators = True

    def __init__(self, state: ModelState, model: Any) -> None:
        super().__init__()
        self._state = state
        self.seen = False
        parameters = [p for root in roots_of(model) for p in root.parameters() if not is_lazy(p)]
        self._parameters = {p.untyped_storage().data_ptr(): p for p in parameters if _has_memory(p)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The operator's own result."""
        if isinstance(func, OpOverload) and func._schema.is_mutable:
            for value in pytree.tree_leaves((args, kwargs)):
                if isinstance(value, Tensor) and _has_memory(value):
                    found = self._parameters.get(value.untyped_storage().data_ptr())
                    if found is not None:
                        self.seen = True
                        with _disable_current_modes():
                            self._state.copy_parameter(found)
        return func(*args, **(kwargs or {}))


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta and type(tensor) in _PLAIN


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
def preserved(model: Any, arguments: Sequence[Any] = ()) -> Iterator[ModelState]:
    """Leave model, arguments and process as they are, whatever is run inside.

    Where several threads run the same model at once, the last to leave puts it back.

    Args:
        model: any callable on tensors, or a program of ``torch.export``.
        arguments: what it is called with, those that are not random.

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
        state = ModelState(model, arguments, values)
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
        run.records.update(state.copies)
        RUNS.leave(run)
    if written and outermost:
        warn_user(_writes(model, written))


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """Run the model to find something out, as if that had not been.

    What was found out is remembered, and the model is not tried again: a trial that used up random numbers
    would give the first result of a seed other ones than the next. So random generators, settings and the
    model's state are put back.
    """
    process, state = ProcessState(own_code=True), current_state()
    own = [] if state is None else state.generators
    generators = [Generator(each.generator, generator_state(each.generator)) for each in own]
    with own_draws():
        try:
            yield
        finally:
            process.restore()
            for generator in generators:
                generator.restore()
            if state is not None:
                state.end_pass()


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
