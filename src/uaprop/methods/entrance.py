"""Two ways into a model: by calling it, and by the graph that ``torch.export`` captures of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from ..dispatch.graph import CapturedModel, ran_into
from ..dispatch.watch import current
from ..errors import UnsupportedOperation
from ..gaussian import Gaussian
from ..numerics.turns import one_at_a_time
from ..tensor_form import InTensorForm
from .arguments import Arguments, mapped
from .model_state import current_state
from .tensor_branches import gives_the_same, takes_gaussians

__all__ = ["either_way", "with_notes"]

Model = Callable[..., Any]


def either_way(
    model: Model | ExportedProgram,
    arguments: Arguments,
    run: Callable[[Model], Any],
    on_gaussians: bool = True,
) -> tuple[Any, str]:
    """Run a model on Gaussians, by its graph if it cannot take them as it is.

    Where there is no graph either, it is given Gaussians in the form of tensors.

    That is so if it runs on the arguments' means and fails on the arguments, but not for want of a
    rule: the graph would end at the same operation.

    Args:
        model: any callable on tensors, or a program of ``torch.export``.
        arguments: its arguments.
        run: what to do with a callable on Gaussians.
        on_gaussians: whether it gives Gaussians to it, and not tensors.

    Returns:
        What ``run`` returns, and how the model was entered: "" if by calling it.

    Raises:
        UnsupportedOperation: if an operation has no rule, or the model can be entered neither way.
        Exception: the model's own error, if it fails on plain tensors too.
    """
    if isinstance(model, ExportedProgram):
        return run(CapturedModel(model)), "a program of torch.export"
    if on_gaussians and not takes_gaussians(model, arguments):
        reason = "another result for a Gaussian without noise"
        return _captured(model, arguments, run, reason, None)
    try:
        return run(model), ""
    except UnsupportedOperation:
        raise
    except Exception as error:
        if not ran_into(model, error) or not _runs_on_tensors(model, arguments):
            raise
        return _captured(model, arguments, run, _told(error), error)


def _captured(
    model: Model,
    arguments: Arguments,
    run: Callable[[Model], Any],
    reason: str,
    error: Exception | None,
) -> tuple[Any, str]:
    """By the model's graph, or by Gaussians in the form of tensors; and how."""
    if (watch := current()) is not None:
        watch.refusals.clear()  # they belong to the first attempt
    state = current_state()
    restore = None if state is None else state.start_pass
    try:
        answer = run(_checked(CapturedModel(model, restore), model, arguments))
    except UnsupportedOperation:
        raise
    except Exception as second:
        with contextlib.suppress(Exception):  # what export says is the better message
            answer = run(_checked(InTensorForm(model), model, arguments))
            return answer, f"on Gaussians in the form of tensors, after {reason}"
        raise UnsupportedOperation(
            getattr(model, "__name__", type(model).__name__),
            reason=f"the model cannot take a Gaussian ({reason}), and running its graph, captured "
            f"with torch.export, does not work either ({_told(second)})",
            remedy='Use method="samples", which calls the model on tensors only.',
        ) from error
    return answer, f"by its graph, captured with torch.export, after {reason}"


def _checked(way: Model, model: Model, arguments: Arguments) -> Model:
    """A way to run a model, if it gives the same."""
    if not gives_the_same(model, way, arguments):
        raise RuntimeError("its graph is not what the model computes")
    return way


def _runs_on_tensors(model: Model, arguments: Arguments) -> bool:
    """Whether the model takes the means; whatever it keeps of what it saw stays as it was."""
    args, kwargs = arguments.filled([x.loc.detach().clone() for x in arguments.gaussians])
    scripted = isinstance(model, torch.jit.ScriptModule)
    try:
        with one_at_a_time, torch.no_grad(), torch.random.fork_rng():
            if isinstance(model, nn.Module) and not scripted:
                buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
                torch.func.functional_call(model, buffers, args, kwargs)
            else:
                model(*args, **kwargs)
    except Exception:  # then the error that came up before is the model's own
        return False
    return True


def with_notes(answer: Any, entrance: str, linearised: tuple[str, ...]) -> Any:
    """The answer, with notes on how it came about in the provenance of each Gaussian."""
    if not entrance and not linearised:
        return answer

    def note(value: Gaussian) -> Gaussian:
        if value.provenance is None:
            return value
        told = replace(value.provenance, entrance=entrance, linearised=linearised)
        return value.with_provenance(told)

    return mapped(note, answer)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
