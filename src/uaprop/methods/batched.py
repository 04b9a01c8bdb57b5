"""Many samples of the input in few calls of a model, where that is known to give the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .accumulate import same

__all__ = ["Batched"]


class Batched:
    """Runs a function on stacked samples: as one batch if that is the same, else one by one.

    One batch, ``(samples·batch, …)`` instead of ``(samples, batch, …)``, is what one would write by hand, and
    the fastest. It is the same for a function that treats the items of a batch independently, however many
    they are (:class:`~uaprop.methods.batch_independence.BatchItems`).

    Args:
        function: of as many tensors as there are stacks of samples.
        batch: the number of items, the first dimension of all its arguments, if samples may be joined to one
            batch; else None.
        note: is told the stacks that were run together, and the results.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        batch: int | None = None,
        note: Callable[[Sequence[Tensor], Any], None] | None = None,
    ) -> None:
        self.function = function
        self.batch = batch
        self.note = note

    def __call__(self, *samples: Tensor) -> Any:
        """The function's results, stacked along the first dimension."""
        if self.batch is not None:
            joined = self._joined(*samples)
            if joined is not None:
                if self.note is not None:
                    self.note(samples, joined)
                return joined
            self.batch = None  # it depends on the size of the batch after all
        # copies: in a view of all samples, strides over memory would reach another sample
        results = stacked(
            [self.function(*(row.clone() for row in rows)) for rows in zip(*samples, strict=True)]
        )
        if self.note is not None:
            one = pytree.tree_map_only(Tensor, lambda t: t[:1], results)
            self.note([stack[:1] for stack in samples], one)
        return results

    def _joined(self, *samples: Tensor) -> Any:
        """The results from one batch; None if they do not have its size."""
        count = len(samples[0])
        try:
            # copies: the function may modify its input, and then fail
            result = self.function(*(stack.clone().flatten(0, 1) for stack in samples))
        except Exception:
            return None  # an error of the function's own comes up again, sample by sample
        assert self.batch is not None
        size = count * self.batch
        leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        if not all(t.ndim and len(t) == size for t in leaves):
            return None
        return pytree.tree_map_only(Tensor, lambda t: t.unflatten(0, (count, self.batch)), result)


def stacked(results: list[Any]) -> Any:
    """What a function returned for several samples, every tensor with a new first dimension."""

    def stack(*values: Any) -> Any:
        if isinstance(values[0], Tensor):
            return torch.stack(values)
        for other in values[1:]:
            same(values[0], other)
        return values[0]

    return pytree.tree_map(stack, *results)
