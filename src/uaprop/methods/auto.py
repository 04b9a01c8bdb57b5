"""The method for those who do not want to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..dispatch.watch import current
from ..errors import UnsupportedOperation
from ..gaussian import Gaussian
from ..records import opened
from .arguments import Arguments, mapped
from .entrance import either_way, with_notes
from .hybrid import hybrid
from .linear_map import exact_if_linear
from .options import whole_number
from .own_randomness import refuse_own_randomness
from .response import chosen
from .samples import samples

__all__ = ["auto"]

_FEW_OUTPUTS = 64  # a backward pass for each of them costs less than the draws it saves
_MANY_OUTPUTS = 4096  # so many rarely vary in a few directions: more likely they are a picture
_DRAWS = 16
_RANK = 16
_MANY_DRAWS = 128


def auto(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    seed: int = 0,
    outputs: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    chunk: int | None = None,
) -> Any:
    """Choose by the number of outputs, as the measured frontier says (docs: Frontier).

    Up to 64 outputs per batch element: ``"hybrid"`` with a backward pass for each. More of a model that is
    linear over its noise: its exact variances (:mod:`~uaprop.methods.linear_map`). Up to 4096: ``"hybrid"``
    with the response along 16 main directions. More (a segmentation, a picture), or a model that hybrid
    cannot run: ``"samples"``. The choice and its reason are in the answer's ``provenance``.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        seed: makes the answer reproducible.
        outputs: which outputs of each batch element are wanted; all by default.
        keys: an integer for each batch element, from which its noise is derived together with the seed.
        chunk: batch elements (hybrid) or draws (samples) at a time; bounds the memory.

    Returns:
        The model's answer, in Gaussians with standard errors.
    """
    whole_number("seed", seed, 0)
    watch = current()
    arguments = Arguments(args, kwargs)
    wanted = len(outputs) if outputs is not None else _outputs(model, arguments)
    picked = model if outputs is None else _picking(model, outputs)
    if wanted > _FEW_OUTPUTS:
        try:
            exact = exact_if_linear(picked, arguments, wanted)
        except (RuntimeError, TypeError):  # no derivative; whether the model runs is seen below
            exact = None
        if exact is not None:
            return _because(exact, f"{wanted} outputs, linear over the noise, so this is exact")
    if wanted > _MANY_OUTPUTS:
        reason = f"{wanted} outputs, too many for their response to be known"
    else:
        rank = None if wanted <= _FEW_OUTPUTS else _RANK
        options: dict[str, Any] = {
            "samples": _DRAWS,
            "seed": seed,
            "outputs": outputs,
            "rank": rank,
        }
        try:
            with refuse_own_randomness("hybrid", model, arguments):
                answer, entrance = either_way(
                    model,
                    arguments,
                    lambda way: hybrid(way, args, kwargs, keys=keys, chunk=chunk, **options),
                )
            answer = with_notes(answer, entrance, ())
            how = "few enough for a backward pass each" if rank is None else "along main directions"
            if watch is not None:
                watch.check()
            return _because(answer, f"{wanted} outputs, {how}")
        except (RuntimeError, TypeError, AttributeError) as error:  # it did run on plain tensors
            reason = f"hybrid cannot run the model ({_summary(error)})"
            if watch is not None:
                watch.refusals.clear()
    answer = samples(
        picked,
        args,
        kwargs,
        samples=_MANY_DRAWS,
        seed=seed,
        centred=True,
        keys=keys,
        chunk=chunk,
    )
    return _because(answer, reason)


def _summary(error: Exception) -> str:
    if isinstance(error, UnsupportedOperation):
        return f"{error.operation} in '{error.module}'" if error.module else error.operation
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _picking(model: Callable[..., Any], outputs: Sequence[int]) -> Callable[..., Any]:
    """The model with some outputs of each batch element only."""

    def pick(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        flat = value.flatten(1) if value.ndim > 1 else value.reshape(-1)
        return flat[..., chosen(outputs, flat.shape[-1], value.device)]

    return lambda *args, **kwargs: pytree.tree_map(pick, opened(model(*args, **kwargs)))


def _outputs(model: Callable[..., Any], arguments: Arguments) -> int:
    """How many outputs the model has for each batch element, from one plain pass."""
    with torch.no_grad(), torch.random.fork_rng():
        answer = arguments.run(model, [x.loc.clone() for x in arguments.gaussians])
    batch = arguments.batch
    total = 0
    for value in pytree.tree_leaves(answer):
        if isinstance(value, Tensor) and value.is_floating_point():
            one_by_one = batch is not None and value.ndim > 1 and value.shape[0] == batch
            total += value.shape[1:].numel() if one_by_one else value.numel()
    return total


def _because(answer: Any, reason: str) -> Any:
    def tell(value: Gaussian) -> Gaussian:
        if value.provenance is None:
            return value
        return value.with_provenance(replace(value.provenance, reason=reason))

    return mapped(tell, answer)
