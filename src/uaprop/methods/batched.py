"""Many draws of the input in few calls of a model, where that is known to be the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .accumulate import same

__all__ = ["Batched"]

_LEAF = pytree.tree_structure(0)  # of an answer that is one tensor


class Batched:
    """Runs a function on stacked draws: as one batch if that is the same, else vectorised, else one by one.

    One batch, ``(draws·batch, …)`` instead of ``(draws, batch, …)``, is what one would write by hand, and
    the fastest. It is the same only for a function that treats batch elements independently, however many
    they are. So that is tried first: the last batch element of the first draw (the first of two), between two
    others that are not numbers, must give what it gave among its own batch, in another place. Then no
    arithmetic connects batch elements, be it ever so weak. The trial runs under ``torch.vmap``, which refuses
    to branch on values. A function with randomness of its own gives no answer twice, and is vectorised.

    Args:
        function: of as many tensors as there are stacks of draws.
        batch: the number of batch elements, the first dimension of all its arguments; None not to try to
            make one batch of all draws.
        independent: whether the function is known to treat batch elements independently.
    """

    def __init__(
        self, function: Callable[..., Any], batch: int | None = None, independent: bool = False
    ) -> None:
        self.function = function
        self.batch = batch
        self.independent = independent
        self._place = 0 if batch == 2 else -1  # not the middle of three, where the trial has it
        self.vectorised = True
        self._spec: pytree.TreeSpec | None = None  # the answer's, once the trial has been passed

    def __call__(self, *draws: Tensor) -> Any:
        """The function's answers, stacked along the first dimension."""
        if self.batch is not None:
            if self._spec is not None or self.independent:
                folded = self._folded(*draws)
                if folded is not None:
                    return folded
                self.batch = None  # it depends on the size of the batch after all
            else:
                return self._first(*draws)
        if self.vectorised and len(draws[0]) > 1:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", UserWarning)  # vmap warns where it would be slow
                    return torch.vmap(self.function, randomness="different")(*_copies(draws))
            except Exception:
                # Not every program can be vectorised; a real error will come up again below.
                self.vectorised = False
        return _stacked([self.function(*rows) for rows in zip(*draws, strict=True)])

    def _first(self, *draws: Tensor) -> Any:
        """The first draw as it is, then the trial, then the rest as the trial allows."""
        elements = [
            stack[0, self._place].clone() for stack in draws
        ]  # the function may write to its input
        answer = self.function(*(stack[0] for stack in draws))
        leaves, spec = pytree.tree_flatten(answer)
        if self._independent(elements, leaves, spec):
            self._spec = spec
        else:
            self.batch = None
        alone = _stacked([answer])
        if len(draws[0]) == 1:
            return alone
        rest = self(*(stack[1:] for stack in draws))
        return pytree.tree_map(_joined, alone, rest)

    def _independent(
        self, elements: list[Tensor], leaves: list[Any], spec: pytree.TreeSpec
    ) -> bool:
        """Whether a batch element's answer is the same among others that are not numbers."""
        if not all(leaf.ndim > 0 and len(leaf) == self.batch for leaf in _tensors(leaves)):
            return False
        blank = [torch.full_like(element, torch.nan) for element in elements]
        trial = [
            torch.stack([nan, element, nan]).unsqueeze(0)
            for nan, element in zip(blank, elements, strict=True)
        ]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                answer = torch.vmap(self.function, randomness="different")(*trial)
        except Exception:
            return False  # not for batches of any size, or not for vmap; a real error comes up elsewhere
        found, other = pytree.tree_flatten(answer)
        if other != spec:
            return False
        return all(_agrees(leaf, one, self._place) for leaf, one in zip(leaves, found, strict=True))

    def _folded(self, *draws: Tensor) -> Any:
        """The answers from one batch; None if they do not have its size."""
        count = len(draws[0])
        try:
            answer = self.function(*(stack.flatten(0, 1) for stack in _copies(draws)))
        except Exception:
            return None  # a real error will come up again, draw by draw
        assert self.batch is not None
        size = count * self.batch
        leaves, spec = (
            ([answer], _LEAF) if isinstance(answer, Tensor) else pytree.tree_flatten(answer)
        )
        self._spec = spec if self._spec is None else self._spec
        if spec != self._spec or not all(t.ndim and len(t) == size for t in _tensors(leaves)):
            return None
        apart = [t.unflatten(0, (count, -1)) if isinstance(t, Tensor) else t for t in leaves]
        return apart[0] if spec is _LEAF else pytree.tree_unflatten(apart, spec)


def _copies(draws: tuple[Tensor, ...]) -> list[Tensor]:
    """So that a function that writes to its input, and then fails, leaves the draws alone."""
    return [stack.clone() for stack in draws]


def _tensors(leaves: list[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _agrees(known: Any, found: Any, place: int) -> bool:
    """Whether the trial's middle element is one of what is known, to rounding."""
    if not isinstance(known, Tensor) or not isinstance(found, Tensor):
        return known is found or (type(known) is type(found) and known == found)
    if found.shape != (1, 3, *known.shape[1:]) or found.dtype != known.dtype:
        return False
    if not known.is_floating_point():
        return torch.equal(found[0, 1], known[place])
    # Sums in another order: a few of the last digits, of the largest element.
    rounding = torch.finfo(known.dtype).eps ** (2 / 3) * known.abs().amax()
    return bool(((found[0, 1] - known[place]).abs() <= rounding).all())


def _stacked(answers: list[Any]) -> Any:
    def stack(*values: Any) -> Any:
        if isinstance(values[0], Tensor):
            return torch.stack(values)
        for other in values[1:]:
            same(values[0], other)
        return values[0]

    return pytree.tree_map(stack, *answers)


def _joined(first: Any, rest: Any) -> Any:
    if isinstance(first, Tensor):
        return torch.cat([first, rest])
    same(first, rest)
    return first
