"""The model's own output at the mean input, kept beside a result as ``y.nominal``.

The mean of the output is not the output at the mean: a network's prediction without noise is the latter. It
takes one plain pass, which a method that makes one anyway shares (:func:`run_at_mean`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..dispatch.graph import CapturedModel
from ..numerics.draws import DrawWatch
from ..numerics.moments import is_transformed
from ..records import opened
from .arguments import Arguments, is_gaussian
from .batch_independence import BatchItems, default_chunk
from .model_state import ModelState, ParameterWrites, current_state
from .options import chosen
from .own_randomness import is_random
from .process_state import random_states, same_states
from .work import WorkCounter

__all__ = ["MeanPass", "add_nominal", "outputs_and_work", "run_at_mean", "run_first"]

_RANDOM = "the model has randomness of its own, so that it has no single output at the mean"
_OTHERWISE = "the model returns something else for a plain tensor"


class MeanPass:
    """What a plain pass at the mean gave, as a context for the run of a method.

    Args:
        counts_work: whether to count how much the model computes.

    Attributes:
        outputs: all that the model returned, one after the other; None if there was no such pass yet.
        used_random_numbers: whether it did.
        work: how much it computed from the input, for all items.
    """

    def __init__(self, counts_work: bool = False) -> None:
        self.outputs: list[Any] | None = None
        self.used_random_numbers = False
        self.counts_work = counts_work
        self.work = 0

    def __enter__(self) -> MeanPass:
        self._token = _current.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)


_current: ContextVar[MeanPass | None] = ContextVar("uaprop_mean_pass", default=None)


def run_at_mean(model: Callable[..., Any], arguments: Arguments, chunk: int | None = None) -> Any:
    """One plain pass at the mean, which is kept for the result's ``nominal``.

    A method that needs such a pass of the whole batch takes this one, as the first it makes.

    Args:
        model: any callable on tensors.
        arguments: its arguments.
        chunk: batch elements at a time, of a chain of layers that treat them one by one; None for all.

    Returns:
        The model's output, opened (:mod:`~uaprop.records`).
    """
    outputs, kept = [], _current.get()
    counter = WorkCounter() if kept is not None and kept.counts_work else None
    with torch.no_grad(), torch.random.fork_rng(), DrawWatch(random_states, same_states) as watch:
        for _, piece in arguments.pieces(chunk):
            means = [x.loc.detach().clone() for x in piece.gaussians]  # the model may write to it
            if counter is None:
                outputs.append(piece.run(model, means))
                continue
            counter.follow(means)
            with counter:
                outputs.append(piece.run(model, means))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if kept is not None:
        kept.work = 0 if counter is None else counter.total
        # at once: the model may return a buffer, which its next run overwrites
        kept.outputs = [_copy(leaf) for leaf in pytree.tree_leaves(output)]
        state = current_state()
        own = [] if state is None else state.generators
        kept.used_random_numbers = watch.foreign or any(each.was_used for each in own)
    return output


def outputs_and_work(model: Callable[..., Any], arguments: Arguments) -> tuple[list[Any], int]:
    """All that the model returns at the mean, and how much it computes from the input.

    It is run there unless it was already.

    Args:
        model: any callable on tensors.
        arguments: its arguments.

    Returns:
        The outputs, one after the other; the operations, for all items (:mod:`~uaprop.methods.work`).
    """
    kept = _current.get()
    if kept is None or not kept.counts_work:
        with MeanPass(counts_work=True) as own:
            run_at_mean(model, arguments)
        return own.outputs or [], own.work
    if kept.outputs is None:
        run_at_mean(model, arguments)
    return kept.outputs or [], kept.work


def run_first(
    model: Callable[..., Any] | ExportedProgram,
    arguments: Arguments,
    method: str,
    options: Mapping[str, Any],
    state: ModelState,
) -> None:
    """The pass at the mean before all others, in which parameters are copied that the model writes to.

    Args:
        model: any callable on tensors, or a program.
        arguments: its arguments.
        method: the method's name.
        options: its options.
        state: what the model was like.
    """
    if is_transformed() or isinstance(model, ExportedProgram):
        return
    with ParameterWrites(state, model), contextlib.suppress(Exception):  # it comes up again
        run_at_mean(model, arguments, _at_a_time(model, arguments, method, options))


def add_nominal(
    answer: Any,
    model: Callable[..., Any] | ExportedProgram,
    arguments: Arguments,
    method: str,
    options: Mapping[str, Any],
    state: ModelState,
    mean_pass: MeanPass,
) -> None:
    """Tell the Gaussians of a method's answer what the model gives at the mean input.

    The model is run as it was at first; it has to be inside of
    :func:`~uaprop.methods.model_state.preserved`.

    Args:
        answer: what the method returned.
        model: any callable on tensors, or a program.
        arguments: its arguments.
        method: the method's name.
        options: its options.
        state: what the model was like.
        mean_pass: the pass that the method has made, if it has made one.
    """
    leaves = pytree.tree_leaves(opened(answer), is_leaf=is_gaussian)
    results = [
        (place, value, value.provenance)
        for place, value in enumerate(leaves)
        if is_gaussian(value) and value.provenance is not None
    ]
    if all(told.method == "linear" for _, _, told in results):  # whose mean it is
        for _, value, told in results:
            value.with_provenance(replace(told, nominal=_copy(value.loc)))
        return
    outputs, reason = _outputs_at_mean(model, arguments, method, options, state, mean_pass)
    if not reason and len(outputs) != len(leaves):
        reason = _OTHERWISE
    for place, value, told in results:
        output = None if reason else _picked(outputs[place], options.get("outputs"))
        if isinstance(output, Tensor) and output.shape == value.shape:
            value.with_provenance(replace(told, nominal=output))
        else:
            value.with_provenance(replace(told, without_nominal=reason or _OTHERWISE))


def _outputs_at_mean(
    model: Callable[..., Any] | ExportedProgram,
    arguments: Arguments,
    method: str,
    options: Mapping[str, Any],
    state: ModelState,
    mean_pass: MeanPass,
) -> tuple[list[Any], str]:
    """All that the model returns for the mean, and why it is not known; "" if it is."""
    if is_transformed():
        return [], "it is not computed inside of torch.func.grad"
    call = CapturedModel(model) if isinstance(model, ExportedProgram) else model
    if mean_pass.outputs is None:
        state.restore()
        try:
            run_at_mean(call, arguments, _at_a_time(call, arguments, method, options))
        except Exception as error:  # it may be a function of Gaussians
            return [], f"the model fails there ({type(error).__name__}: {error})"
    if mean_pass.used_random_numbers and is_random(model, arguments):
        return [], _RANDOM
    return mean_pass.outputs or [], ""


def _at_a_time(
    model: Any, arguments: Arguments, method: str, options: Mapping[str, Any]
) -> int | None:
    """Batch elements at a time, so that this pass needs no more memory than the method did.

    A method runs all of them at once anyway, to see whether they influence each other, unless that is known
    of the model.

    Returns:
        A number of them; None for all.
    """
    items = BatchItems(model, arguments)
    if not items.are_known:
        return None
    chunk = options.get("chunk") if method != "samples" else None  # which are samples there
    return chunk or default_chunk(items, sum(x.numel() for x in arguments.gaussians))


@torch.inference_mode(False)
def _copy(output: Any) -> Any:
    """A tensor that nothing else refers to; anything else as it is."""
    return output.detach().clone() if isinstance(output, Tensor) else output


def _picked(output: Any, outputs: Sequence[int] | None) -> Any:
    """Some outputs of each batch element, as the methods' option ``outputs`` picks them."""
    if outputs is None or not isinstance(output, Tensor):
        return output
    flat = output.flatten(1) if output.ndim > 1 else output.reshape(-1)
    return flat[..., chosen(outputs, flat.shape[-1], flat.device)]
