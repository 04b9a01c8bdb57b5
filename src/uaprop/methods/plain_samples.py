"""A model on stacked samples of its inputs, as many at a time as its size allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .accumulate import same
from .arguments import Arguments
from .batch_independence import BatchItems
from .batched import Batched

__all__ = ["PlainSamples", "fitting", "is_worth_joining"]

_CHUNK_ELEMENTS = 2**18  # input elements that are in flight at once, by default
_CHUNK_ROWS, _SMALL = 384, 2**16  # items at once, or more of few elements: still more are no faster
_WORTH_JOINING = (
    2**14
)  # input elements of all samples, for which to see if they can go in one batch
_FEW, _LARGE = 4, 2**12  # so few samples of so many elements go one by one
_FEW_ROWS = 24  # items of all samples, for which to see would not pay


def is_worth_joining(
    samples: int, elements: int, batch: int | None, known: bool, chunk: int | None = None
) -> bool:
    """Whether samples go in one batch, if that is the same: not where to find out would not pay."""
    if batch is None or (chunk is None and 2 * elements > _CHUNK_ELEMENTS):
        return False  # there will be one sample at a time
    if known:
        return True
    few = chunk is None and samples <= _FEW and elements >= _LARGE
    return not few and samples * elements >= _WORTH_JOINING and samples * batch >= _FEW_ROWS


def fitting(elements: int, batch: int | None) -> int:
    """How many samples of so many elements go at once."""
    items = batch or 1
    rows = max(_CHUNK_ROWS, _SMALL * items // max(elements, 1))
    return min(_CHUNK_ELEMENTS // max(elements, 1), rows // items)


class PlainSamples:
    """Runs a model on samples that are in memory, without derivatives.

    What was joined has to be confirmed afterwards (:meth:`~.batch_independence.BatchItems.confirm`).

    Args:
        model: any callable on tensors.
        items: what is known of the batch that the samples are of.
        samples: how many there will be.
    """

    def __init__(self, model: Callable[..., Any], items: BatchItems, samples: int) -> None:
        self._model = model
        self._items = items
        self._samples = samples

    @torch.no_grad()
    def __call__(self, arguments: Arguments, stacks: Sequence[Tensor]) -> Any:
        """The results for noise of each random argument.

        Args:
            arguments: of the whole batch, or of a part of it.
            stacks: their noise, ``(samples, *shape)``.

        Returns:
            The model's output, every tensor with a new first dimension.
        """
        gaussians, batch = arguments.gaussians, arguments.batch
        elements, count = sum(x.numel() for x in gaussians), len(stacks[0])
        join = is_worth_joining(self._samples, elements, batch, self._items.are_known)
        join = join and self._items.are_separable
        batch = batch if join else None
        run = Batched(
            lambda *v: arguments.run(self._model, v),
            batch,
            lambda values, results: self._items.note(values, results, arguments),
        )
        size = max(1, fitting(elements, batch))
        results = [
            run(
                *(
                    x.loc.detach() + stack[start : start + size]
                    for x, stack in zip(gaussians, stacks, strict=True)
                )
            )
            for start in range(0, count, size)
        ]
        return results[0] if len(results) == 1 else pytree.tree_map(_joined, *results)


def _joined(*parts: Any) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    for other in parts[1:]:
        same(parts[0], other)
    return parts[0]
