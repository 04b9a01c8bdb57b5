"""Which operations a model is made of, and how well each of them is known: all of them, in one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..covariance import Diagonal
from ..dispatch import admit
from ..dispatch.functions import plain_function
from ..dispatch.spellings import name_of
from ..dispatch.watch import Event, Watch
from ..errors import UnsupportedOperation
from ..gaussian import Gaussian
from ..kinds import Joint, Linear, Select
from ..methods.arguments import Arguments
from ..methods.entrance import either_way
from ..methods.model_state import preserved
from ..tensor_form import InTensorForm
from .covered import Coverage, Operation

__all__ = ["coverage"]

_SPREAD = 1e-3  # small, so that no operation is refused for the noise's size


def coverage(
    model: Callable[..., Any] | ExportedProgram, *example_inputs: Any, **example_kwargs: Any
) -> Coverage:
    """Run a model and list every operation met: its rule, its kind, and whether its moments are exact.

    An operation without a rule does not end the run: it goes on from the operation's plain answer, so
    that all of them are listed at once.

    Args:
        model: any callable on tensors, usually an ``nn.Module``, or a program of ``torch.export``.
        *example_inputs: its arguments. If there is no Gaussian among them, every floating-point tensor
            counts as one.
        **example_kwargs: its keyword arguments, likewise.

    Returns:
        A table that prints, with ``.supported`` and ``.to_dict()``.

    Raises:
        TypeError: if no input can be random.
    """
    arguments = _random(example_inputs, example_kwargs)
    admit(model)
    # not the caller's own, which the model may write to
    own = [Gaussian._from_covariance(x.loc, x.cov) for x in arguments.gaussians]
    args, kwargs = arguments.filled(own)
    with preserved(model), torch.no_grad(), Watch(record=True, stand_in=_stand_in) as watch:

        def run(way: Callable[..., Any]) -> Any:
            watch.events.clear()
            answer = way(*args, **kwargs)
            refusals = [event.refusal for event in watch.events if event.refusal is not None]
            if (
                isinstance(way, InTensorForm) and refusals
            ):  # the last resort, only if all of it works
                watch.events.clear()
                raise refusals[0]
            return answer

        try:
            _, entrance = either_way(model, arguments, run)
        except UnsupportedOperation as refusal:
            entrance = ""
            watch.events.append(Event(model, "", None, refusal=refusal))
    rows: dict[tuple[str, str, str], list[Event]] = {}
    for event in watch.events:
        rows.setdefault((_name(event), _kind(event), _moments(event)), []).append(event)
    return Coverage(tuple(_row(*key, events=events) for key, events in rows.items()), entrance)


def _random(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments, with some of them random."""
    arguments = Arguments(args, kwargs)
    if arguments.gaussians:
        return arguments

    args, kwargs = pytree.tree_map(_noisy, (args, kwargs))
    arguments = Arguments(args, kwargs)
    if not arguments.gaussians:
        raise TypeError(
            "coverage needs a floating-point tensor among the inputs; for a language model that takes "
            "token numbers give the embedded tokens, as in coverage(model, inputs_embeds=…)"
        )
    return arguments


def _noisy(leaf: Any) -> Any:
    """A floating-point tensor with a little noise; anything else as it is."""
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return Gaussian._from_covariance(leaf, _small(leaf))
    return leaf


def _small(mean: Tensor) -> Diagonal:
    scale = mean.detach().square().mean().nan_to_num(1.0) if mean.numel() else mean.new_ones(())
    return Diagonal(torch.full_like(mean, 1.0) * (_SPREAD**2 * scale.clamp_min(1e-12)))


def _stand_in(operation: Any, args: Any, kwargs: Any, inputs: Any) -> Any:
    """The operation's plain answer at the means, random again where it is a floating-point tensor."""
    name = getattr(operation, "__name__", "")
    inplace = (name.endswith("_") and not name.endswith("__")) or bool(kwargs.get("inplace"))
    value = plain_function(operation, args, kwargs, inputs, inplace)(*(x.loc for x in inputs))
    if inplace and isinstance(args[0], Gaussian) and value.shape == args[0].shape:
        args[0].assign(value, _small(value))
        return args[0]
    return pytree.tree_map(_noisy, value)


# ------------------------------------------------------------ from events to rows


def _name(event: Event) -> str:
    if event.refusal is not None:
        return event.refusal.operation
    return name_of(event.operation)


def _kind(event: Event) -> str:
    if event.refusal is not None:
        return ""
    if event.kind is not None:
        return type(event.kind).__name__
    if event.identity:
        return "identity"
    names = dict.fromkeys(name_of(part.operation).rpartition(".")[2] for part in event.parts)
    return ", ".join(names) if names else "plain"


def _moments(event: Event) -> str:
    """The worst that happens to a moment: "exact", "approximate", "linearised" or "unsupported"."""
    if event.refusal is not None or event.rule is None:
        return "unsupported"
    linear = isinstance(event.kind, Linear | Select)  # a rule may have these and others
    own = "exact" if event.rule.exact or linear else "approximate"
    if isinstance(event.kind, Joint) and event.kind.composed is None and not event.rule.exact:
        own = "linearised"
    return max((own, *map(_moments, event.parts)), key=("exact", "approximate", "linearised").index)


def _row(name: str, kind: str, moments: str, events: list[Event]) -> Operation:
    first = events[0]
    used = () if first.identity else (first, *first.parts)
    sources = (e.rule.source for e in used if e.rule is not None and e.rule.source)
    refusal = first.refusal
    return Operation(
        name=name,
        calls=len(events),
        modules=tuple(dict.fromkeys(event.place for event in events)),
        rule="" if first.rule is None else first.rule.name,
        kind=kind,
        moments=moments,
        source="; ".join(dict.fromkeys(sources)),
        reason=""
        if refusal is None
        else refusal.reason or "no rule says how it acts on a Gaussian",
        remedy="" if refusal is None else refusal.remedy,
    )
