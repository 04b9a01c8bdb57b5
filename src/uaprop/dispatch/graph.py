"""The other entrance: a model captured with ``torch.export``, run operator by operator.

A Gaussian is not a tensor. A model that tests ``isinstance(x, Tensor)`` or calls TorchScript cannot take one.
Its *graph* can: ``torch.export`` records the operators that the model runs on plain tensors, and every
operator of ``torch.ops`` goes to the same rules as the function it stands for.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..kinds import Random, plain
from ..numerics.turns import one_at_a_time, warning_filters
from .place import standing_in

__all__ = ["CapturedModel", "ran_into"]


def _is_random(value: Any) -> bool:
    return isinstance(value, Random)


class CapturedModel:
    """A model as ``torch.export`` sees it; a callable on random and on plain tensors.

    A graph is captured once for each shape and dtype of the arguments. Plain arguments go to the model
    itself.

    Args:
        model: an ``nn.Module``, any other callable on tensors, or an ``ExportedProgram``.
        restore: puts the model's state back once it was captured: a script is run for that.
    """

    def __init__(
        self,
        model: Callable[..., Any] | ExportedProgram,
        restore: Callable[[], None] | None = None,
    ) -> None:
        self._program = model if isinstance(model, ExportedProgram) else None
        self._model: Callable[..., Any] = (
            model.module() if isinstance(model, ExportedProgram) else model
        )
        self._restore = restore
        self._captured: dict[Any, ExportedProgram] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the captured graph on the arguments."""
        leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=_is_random)
        if not any(map(_is_random, leaves)):
            return self._model(*args, **kwargs)
        program = self._program or self._capture(leaves, spec)
        return _run(program, args, kwargs)

    def _capture(self, leaves: list[Any], spec: pytree.TreeSpec) -> ExportedProgram:
        key = (spec, tuple(map(_signature, leaves)), getattr(self._model, "training", None))
        if key not in self._captured:
            means = [plain(leaf).detach() if _is_random(leaf) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(means, spec)
            self._captured[key] = capture(self._model, args, kwargs)
            if self._restore is not None:
                self._restore()
        return self._captured[key]


def capture(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ExportedProgram:
    """``torch.export`` of any callable, at the arguments' shapes."""
    scripted = isinstance(model, torch.jit.ScriptModule)
    module = model if isinstance(model, nn.Module) and not scripted else _Called(model)
    with (
        one_at_a_time,
        warning_filters,
        warnings.catch_warnings(),
        torch.no_grad(),
        _without_script_modules(module),
    ):
        warnings.simplefilter("ignore")  # what export has to say of its own inner workings
        return torch.export.export(module, args, kwargs, strict=False)


class _Called(nn.Module):
    """Any callable as a module; it keeps no parameters, which become constants of the graph."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if isinstance(function, torch.jit.ScriptModule):
            function = function._c._get_method("forward")  # what export can follow
        self.__dict__["function"] = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.__dict__["function"](*args, **kwargs)


@contextlib.contextmanager
def _without_script_modules(model: nn.Module) -> Iterator[None]:
    """Put scripted parts of a model behind plain modules: export refuses to enter them."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        if not isinstance(parent, torch.jit.ScriptModule)
        for name, child in parent.named_children()
        if isinstance(child, torch.jit.ScriptModule)
    ]
    try:
        for parent, name, child in found:
            parent._modules[name] = _Called(child)
        yield
    finally:
        for parent, name, child in found:
            parent._modules[name] = child


def _signature(leaf: Any) -> Any:
    value = plain(leaf)
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.device, _is_random(leaf)
    return type(value), value if isinstance(value, int | float | str | bool) else id(value)


def _run(program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Interpret a program's graph, its parameters and constants in place."""
    given = iter(pytree.tree_leaves((args, kwargs), is_leaf=_is_random))
    constants = {**program.state_dict, **program.constants}
    inputs = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT:
            inputs.append(next(given))
        else:
            inputs.append(constants[spec.target])
    functorch = torch._C._functorch
    depth = functorch.get_dynamic_layer_stack_depth()
    try:
        flat = _Interpreter(program.graph_module).run(*inputs)
    finally:  # a graph of torch.vmap enters its transform by one node and leaves it by another
        functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
    changed = sum(
        spec.kind is not torch.export.graph_signature.OutputKind.USER_OUTPUT
        for spec in program.graph_signature.output_specs
    )
    return pytree.tree_unflatten(list(flat)[changed:], program.call_spec.out_spec)


class _Interpreter(torch.fx.Interpreter):
    """Runs nodes one by one, and says in which module of the model each of them was."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, in the name of the module that it was recorded in."""
        stack = list((n.meta.get("nn_module_stack") or {}).values())
        if not stack:
            return super().run_node(n)
        path, kind = stack[-1]
        kind = kind if isinstance(kind, str) else kind.__name__
        with standing_in(path, kind.rpartition(".")[2]):
            return super().run_node(n)


def ran_into(model: Callable[..., Any], error: BaseException) -> bool:
    """Whether an error came up inside of the model, and not on the way to it."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_locals.get("self") is model or frame.f_code is getattr(model, "__code__", None):
            return True
        trace = trace.tb_next
    # A scripted function has no frame of its own: the error is raised where it is called.
    return isinstance(model, torch.jit.ScriptFunction | torch.jit.ScriptModule)
