"""Whether the items of a batch influence each other, and whether a batch may be cut or joined.

Of a chain of torch's own layers that is known. Any other model is run on inputs that it was made for: two
examples ``a`` and ``b`` of the batch, such as samples of it, and a mixture, some items from ``a`` and the
others from ``b``. If items do not influence each other, then every tensor that the model computes from the
mixture is such a mixture itself, and no tensor without a batch depends on the input. The outputs alone would
not tell: a comparison with the average over the batch seldom changes them. A model with randomness of its own
gives no result twice, so its items count as dependent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..numerics.chance import RandomNumbers
from ..numerics.draws import own_draws
from ..numerics.lazy import lazy
from .arguments import Arguments
from .batch_trace import BatchTrace, is_mixture
from .known_layers import output_dimensions

__all__ = ["BatchItems", "agree", "default_chunk", "refusal"]

# Input elements of a stack that are in flight at once, by default. A layer may have several times as many
# elements, and from 32 MiB on the C library hands every tensor back to the system.
_AT_ONCE = 5 * 2**18


class BatchItems:
    """What is known of the items of a batch; found out when first asked for.

    Args:
        model: what is run on them.
        arguments: its arguments.
        examples: two values for each random argument; the means and a sample by default.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        arguments: Arguments,
        examples: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    ) -> None:
        self.batch = arguments.batch
        self._model = model
        self._arguments = arguments
        self._given = examples
        self._weights: dict[Any, Tensor] = {}

    @lazy
    def are_known(self) -> bool:
        """Whether the model is a chain of layers that treat items one by one, and the input a batch."""
        arguments = self._arguments
        if self.batch is None or arguments.has_tensors or len(arguments.gaussians) != 1:
            return False
        return output_dimensions(self._model, arguments.gaussians[0].ndim) is not None

    @property
    def are_independent(self) -> bool:
        """Whether no item's result depends on another item, and each is a row of the outputs.

        A vector is one result, whose covariance has all pairs of its elements: not a batch of numbers.
        """
        if self.are_known:
            return True
        return self.are_rowwise and not any(
            leaf.ndim == 1 and len(leaf) == self.batch
            for leaf in pytree.tree_leaves(self.results[0])
            if isinstance(leaf, Tensor)
        )

    @lazy
    def are_rowwise(self) -> bool:
        """Whether no item's result depends on another item."""
        if self.batch is None:
            return False
        if self.are_known:
            return True
        if not _are_batches(*self.results, self.batch):
            return False
        first, second = self._traces
        if self.batch < 2 or self._is_independent(first, second, thorough=False):
            return True
        first, second = (self._traced(values, thorough=True)[1] for values in self._examples)
        return self._is_independent(first, second, thorough=True)

    def _is_independent(self, first: BatchTrace, second: BatchTrace, thorough: bool) -> bool:
        assert self.batch is not None
        own = _some(self.batch)
        mixture = [_chosen(own, a, b) for a, b in zip(*self._examples, strict=True)]
        result, trace = self._traced(mixture, thorough)
        return agree(result, _choose_rows(own, *self.results)) and is_mixture(
            own, first, second, trace
        )

    @lazy
    def are_separable(self) -> bool:
        """Whether a batch may be cut, and joined with another: its size makes no difference either.

        Plain tensors among the arguments cannot be joined. A model that looks at values may take another
        branch for another batch.

        Returns:
            True if it may.
        """
        if self.batch is None or self._arguments.has_tensors:
            return False
        if self.are_known:
            return True
        if not self.are_rowwise or any(trace.looks_at_values for trace in self._traces):
            return False
        if self.batch == 1 and not self._doubled().are_rowwise:
            return False
        own = _some(self.batch)
        joined = [
            torch.cat([_chosen(own, a, b), _chosen(~own, a, b)])
            for a, b in zip(*self._examples, strict=True)
        ]
        mixtures = _choose_rows(own, *self.results), _choose_rows(~own, *self.results)
        batch = self.batch
        expected = pytree.tree_map(
            lambda *rows: torch.cat(rows) if _has_items(rows[0], batch) else rows[0], *mixtures
        )
        with own_draws():
            result = self._run(joined)
        return agree(result, expected)

    def _doubled(self) -> BatchItems:
        """The same item twice: one alone does not show what it would do to another."""
        a, b = ([torch.cat([value, value]) for value in values] for values in self._examples)
        pair = BatchItems(self._model, self._arguments, (a, b))
        pair.batch = 2
        return pair

    @lazy
    def _examples(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        if self._given is not None:
            return self._given
        gaussians = self._arguments.gaussians
        noise = RandomNumbers.seeded(0, device=gaussians[0].device)
        with torch.no_grad():
            means = [x.loc.detach() for x in gaussians]
            return means, [
                mean + x.cov.deviations(1, noise)[0]
                for mean, x in zip(means, gaussians, strict=True)
            ]

    @property
    def results(self) -> tuple[Any, Any]:
        """What the model returns for the two examples; None where it fails."""
        (first, _), (second, _) = self._passes
        return first, second

    @property
    def _traces(self) -> tuple[BatchTrace, BatchTrace]:
        (_, first), (_, second) = self._passes
        return first, second

    @lazy
    def _passes(self) -> tuple[tuple[Any, BatchTrace], tuple[Any, BatchTrace]]:
        first, second = self._examples
        return self._traced(first, thorough=False), self._traced(second, thorough=False)

    def _traced(self, values: Sequence[Tensor], thorough: bool) -> tuple[Any, BatchTrace]:
        trace = BatchTrace(self.batch or 1, thorough, self._weights)
        with own_draws(), trace:  # in this order: to compare generators is not the model's doing
            return self._run(values), trace

    def _run(self, values: Sequence[Tensor]) -> Any:
        """What the model returns; None if it fails, as it may with a batch of another size."""
        with torch.no_grad():
            try:
                return self._arguments.run(self._model, [value.clone() for value in values])
            except Exception:
                return None  # an error of the model's own comes up where it is run in earnest


@functools.cache
def _some(batch: int) -> Tensor:
    """Some of the items, ``(batch,)``: in no regular pattern, so that no regular exchange goes unnoticed.

    Whatever their distance, two items so far apart are not both among them or both not; nor are all mirror
    images, nor all neighbours that would be grouped.

    Returns:
        Whether each is one of them.
    """
    generator = torch.Generator("cpu").manual_seed(batch)
    while True:
        some = torch.rand(batch, generator=generator, device="cpu") < 0.5
        distances = range(1, batch // 2 + 1)
        groups = [k for k in range(2, batch) if batch % k == 0]
        if (
            all(bool((some != some.roll(d)).any()) for d in distances)
            and (batch < 2 or bool((some != some.flip(0)).any()))
            and all(bool((some.view(-1, k) != some.view(-1, k)[:, :1]).any()) for k in groups)
        ):
            return some


def _chosen(first: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Items of ``a`` where ``first`` holds, and of ``b`` elsewhere."""
    return torch.where(first.to(a.device).view(-1, *[1] * (a.ndim - 1)), a, b)


def _choose_rows(first: Tensor, a: Any, b: Any) -> Any:
    """The same for what a model returns."""

    def chosen(one: Any, other: Any) -> Any:
        return _chosen(first, one, other) if _has_items(one, len(first)) else one

    return pytree.tree_map(chosen, a, b)


def _has_items(value: Any, batch: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == batch


def _are_batches(a: Any, b: Any, batch: int) -> bool:
    """Whether two results have a row for each item in every tensor that depends on the input."""
    if a is None or b is None or pytree.tree_structure(a) != pytree.tree_structure(b):
        return False
    pairs = list(zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True))
    batches = [_has_items(one, batch) and _has_items(other, batch) for one, other in pairs]
    constant = (_same(*pair) for pair, is_batch in zip(pairs, batches, strict=True) if not is_batch)
    return any(batches) and all(constant)


def agree(found: Any, expected: Any) -> bool:
    """Whether two results are the same but for rounding."""
    if found is None or expected is None:
        return False
    leaves, spec = pytree.tree_flatten(found)
    others, other_spec = pytree.tree_flatten(expected)
    return spec == other_spec and all(map(_same, leaves, others))


def _same(found: Any, expected: Any) -> bool:
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        plain = type(found) is type(expected) and isinstance(found, bool | int | float | str)
        return found is expected or (plain and found == expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not (found.is_floating_point() or found.is_complex()) or found.numel() == 0:
        return torch.equal(found, expected)
    # Sums in another order: a few of the last digits, of the largest element of an item.
    scale = expected.abs().flatten(1).amax(1) if expected.ndim > 1 else expected.abs().amax()
    rounding = torch.finfo(found.dtype).eps ** (2 / 3) * scale
    apart = (found - expected).abs()
    apart = apart.flatten(1).amax(1) if expected.ndim > 1 else apart
    both_nan = found.isnan() & expected.isnan()
    return bool((apart <= rounding).all()) or torch.equal(
        torch.where(both_nan, 0, found), torch.where(both_nan, 0, expected)
    )


def default_chunk(items: BatchItems, elements: int, fewest: int = 2) -> int | None:
    """Items at a time so that a stack of passes is of a bounded size, if the batch can be cut.

    Memory is one reason; another that the system clears what it hands out again, which for stacks of large
    images takes as long as to compute with them.

    Args:
        items: of the batch.
        elements: input elements of the whole stack.
        fewest: items, with fewer than which it would not pay.

    Returns:
        A number of items; None for all of them.
    """
    batch = items.batch
    if batch is None or batch < fewest or elements <= _AT_ONCE:
        return None
    pieces = -(-elements // _AT_ONCE)
    size = -(-batch // pieces)  # of much the same length
    return size if size < batch and items.are_separable else None


def refusal(chunk: int) -> str:
    """What to say to a user who wants to cut a batch whose items influence each other."""
    return (
        "the model's batch elements influence each other, or its output has no batch dimension, "
        f"so it cannot be run on chunk={chunk} of them at a time; leave chunk out"
    )
