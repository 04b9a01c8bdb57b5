"""The calls that PyTorch tests its own operators and modules with."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.testing._internal import common_methods_invocations, common_modules

from .sweep import Call, arguments_in_turn

__all__ = ["MODULES", "OPERATORS", "module_calls", "operator_calls"]

# Random operators of the database are seeded by this, and would look as if they were not random.
for _module in list(sys.modules.values()):
    _is_database = getattr(_module, "__name__", "").startswith("torch.testing._internal")
    if _is_database and hasattr(_module, "wrapper_set_seed"):
        _module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def _name(operator: Any) -> str:
    variant = operator.variant_test_name
    return f"{operator.name}.{variant}" if variant else str(operator.name)


# Their results are whatever the memory held.
UNINITIALISED = ("empty", "new_empty", "resize")

OPERATORS: dict[str, Any] = {
    _name(operator): operator
    for operator in common_methods_invocations.op_db
    if {torch.float64, torch.float32} & set(operator.supported_dtypes("cpu"))
    and not operator.name.startswith(UNINITIALISED)
}
MODULES: dict[str, Any] = {
    f"{info.name}{'.training' if training else ''}": (info, training)
    for info in common_modules.module_db
    for training in (False, True)
}


def _spread(values: Sequence[Any], most: int | None) -> list[tuple[int, Any]]:
    """So many of them, from the first to the last, with their positions."""
    step = 1 if most is None else max(1, -(-len(values) // most))
    return list(enumerate(values))[::step]


def operator_calls(name: str, most: int | None = None) -> Iterator[Call]:
    """Every sample of an operator, or ``most`` of them, with each floating-point argument in turn."""
    operator = OPERATORS[name]
    wide = torch.float64 in operator.supported_dtypes("cpu")
    torch.manual_seed(0)
    samples = list(operator.sample_inputs("cpu", torch.float64 if wide else torch.float32))
    for number, sample in _spread(samples, most):
        args = (sample.input, *sample.args)
        yield from arguments_in_turn(f"{name}#{number}", operator.op, args, sample.kwargs)


def module_calls(name: str, most: int | None = None) -> Iterator[Call]:
    """Every sample of a module, or ``most`` of them; a copy of the module for each run."""
    info, training = MODULES[name]
    torch.manual_seed(0)
    wide = torch.float64 in info.dtypes
    options = dict(device="cpu", dtype=torch.float64 if wide else torch.float32)
    inputs = info.module_inputs_func(info, requires_grad=False, training=training, **options)
    for number, sample in _spread(list(inputs), most):
        if sample.forward_input is None:
            continue
        torch.manual_seed(0)
        made, given = sample.constructor_input, sample.forward_input
        module = info.module_cls(*made.args, **made.kwargs).to(options["dtype"]).train(training)
        if any(map(is_lazy, module.parameters())):
            module(*given.args, **given.kwargs)  # which gives its parameters their shapes
        module.requires_grad_(False)

        def run(*args: Any, module: Any = module, **kwargs: Any) -> Any:
            return copy.deepcopy(module)(*args, **kwargs)

        yield from arguments_in_turn(f"{name}#{number}", run, given.args, given.kwargs)
