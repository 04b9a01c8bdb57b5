"""Models with randomness of their own, which most methods would see one outcome of.

A rule for dropout has the moments over all masks. A model that calls ``torch.rand`` or draws from numpy in
its ``forward`` has no rule: the method would go on with the variance that *one* mask leaves. ``"linear"``
has no rules at all. Such a model is refused; ``"samples"`` runs it again for each sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..dispatch.graph import CapturedModel
from ..dispatch.place import calling_module
from ..dispatch.spellings import name_of, resolve
from ..errors import UnsupportedOperation
from ..numerics.chance import mixed
from ..numerics.draws import DrawWatch
from ..numerics.moments import is_transformed
from .arguments import Arguments
from .model_state import ModelState, current_state
from .process_state import random_states, same_states

__all__ = ["is_random", "refuse_own_randomness"]

_CERTAIN = ("dropout", "rrelu", "drop_path", "stochastic_depth")
# With other random numbers each, to see whether they matter: a layer that is left out one time in twenty
# is noticed. In evaluation mode they seldom do, and models with layer drop make them all the same.
_RUNS, _RUNS_IN_EVALUATION = 128, 16


@contextlib.contextmanager
def refuse_own_randomness(method: str, model: Any, arguments: Arguments) -> Iterator[None]:
    """Refuse a model that makes random numbers while a method runs it, if they matter.

    Whatever is run here changes the model's state; it has to be inside of
    :func:`~uaprop.methods.model_state.preserved`.

    Args:
        method: the method's name.
        model: any callable on tensors, or a program.
        arguments: its arguments.

    Raises:
        UnsupportedOperation: naming the operation, its module and what to do.
    """
    if is_transformed():
        yield
        return
    state = current_state() or ModelState(model)
    other: UnsupportedOperation | None = None  # which may be due to random numbers, too
    with DrawWatch(partial(random_states, state.own_code), same_states) as watch:
        try:
            yield
        except UnsupportedOperation as error:
            other = error
    if watch.foreign or any(generator.was_used for generator in state.generators):
        _refuse_if_random(method, model, arguments)
    if other is not None:
        raise other


def _refuse_if_random(method: str, model: Any, arguments: Arguments) -> None:
    found = _random_operations(model, arguments)
    ruled = method != "linear"
    found.sort(key=lambda one: ruled and one.has_rule)  # those with a rule were not the cause
    first = found[0] if found else _Random("a random number generator", "", False)
    if not first.is_certain and not _matters(model, arguments):
        return
    ruled_alone = method == "linear" and bool(found) and all(one.is_certain for one in found)
    others = '"hybrid", "adjoint" or "samples"' if ruled_alone else '"samples"'
    raise UnsupportedOperation(
        first.name,
        module=first.module,
        reason=f"it is random, and method {method!r} would see one of its outcomes only",
        remedy="Call model.eval() if it belongs to training, or use "
        f"method={others} for the moments over all outcomes.",
    )


def is_random(model: Any, arguments: Arguments) -> bool:
    """Whether the output at the mean of a model that uses random numbers depends on them.

    Whatever is run here changes the model's state; it has to be inside of
    :func:`~uaprop.methods.model_state.preserved`.

    Args:
        model: any callable on tensors, or a program.
        arguments: its arguments.

    Returns:
        False if it makes them and does not use them.
    """
    found = _random_operations(model, arguments)
    return any(one.is_certain for one in found) or _matters(model, arguments)


@dataclass(frozen=True)
class _Random:
    """An operation that has used a generator."""

    name: str
    module: str
    has_rule: bool

    @property
    def is_certain(self) -> bool:
        """Whether its random numbers matter, however few there are: those of others may not be used."""
        return any(word in self.name for word in _CERTAIN)


class _Watching(TorchFunctionMode):
    """Notes the operations that use torch's generators."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Random] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The function's own result."""
        before = random_states(own_code=False)
        result = func(*args, **(kwargs or {}))
        if not same_states(before, random_states(own_code=False)):
            rule, _ = resolve(func)
            self.found.append(_Random(name_of(func), calling_module(), rule is not None))
        return result


def _random_operations(model: Any, arguments: Arguments) -> list[_Random]:
    """What uses a generator when the model runs on the means."""
    before = random_states()
    with _Watching() as watching:
        _plain_run(model, arguments)
    found = watching.found
    for name, known, now in zip(
        ("", "random", "numpy.random"), before, random_states(), strict=False
    ):
        if name and not same_states([known], [now]):
            found.append(_Random(name, "", False))
    return found


def _matters(model: Any, arguments: Arguments) -> bool:
    """Whether the model's output at the mean depends on random numbers; some are made and not used."""
    evaluation = isinstance(model, nn.Module) and not any(m.training for m in model.modules())
    first: list[Any] | None = None
    for number in range(_RUNS_IN_EVALUATION if evaluation else _RUNS):
        torch.default_generator.manual_seed(mixed(number, 2))
        found = pytree.tree_leaves(_plain_run(model, arguments))
        first = found if first is None else first
        if len(found) != len(first) or not all(map(_agree, first, found)):
            return True
    return False


def _agree(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return isinstance(a, type(b)) and bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    rounding = torch.finfo(a.dtype).eps ** (2 / 3) * (a.abs().amax() if a.numel() else 0)
    return bool(((a - b).abs() <= rounding).all())


@torch.no_grad()
def _plain_run(model: Any, arguments: Arguments) -> Any:
    call = CapturedModel(model) if isinstance(model, ExportedProgram) else model
    return arguments.run(call, [x.loc.detach().clone() for x in arguments.gaussians])
