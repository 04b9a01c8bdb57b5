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
from dataclasses import dataclass
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
from .model_key import Verdicts
from .model_state import current_state, trial
from .process_state import random_states, same_states

__all__ = ["UNSEEN_STATE", "BatchItems", "agree", "default_chunk", "refusal"]

# Input elements of a stack that are in flight at once, by default. A layer may have several times as many
# elements, and from 32 MiB on the C library hands every tensor back to the system.
_AT_ONCE = 5 * 2**18
UNSEEN_STATE = (
    "the model gives another output for the same input when it is run again. Either it makes random numbers "
    "that cannot be seeded, or it keeps state in a place that uaprop does not see, such as a variable of a "
    "closure or an iterator; then the result is wrong. Keep state in attributes of the module."
)
_HARMLESS = 1e-3  # of an output's standard deviation


@dataclass
class _Verdict:
    """What was found out about a model and the form of its arguments.

    Attributes:
        rowwise: whether no item's result depends on another item.
        vectors: whether some output is a vector with a number for each item, that depends on the input.
        cuttable: whether some items alone give the rows that they have in the whole batch.
        separable: whether the batch may be joined with another, too.
    """

    rowwise: bool
    vectors: bool = False
    cuttable: bool | None = None
    separable: bool | None = None


_VERDICTS = Verdicts[_Verdict]()


class BatchItems:
    """What is known of the items of a batch; found out when first asked for, and remembered of a model.

    Args:
        model: what is run on them.
        arguments: its arguments.
        examples: two values for each random argument; the means and a sample by default.
        remember: whether to rely on what was found out before.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        arguments: Arguments,
        examples: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
        remember: bool = True,
    ) -> None:
        self.batch = arguments.batch
        self._model = model
        self._arguments = arguments
        self._given = examples
        self._remember = remember
        self._weights: dict[Any, Tensor] = {}
        self._makes_random = False
        self._witness: _Witness | None = None

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
        return self.are_known or (self.are_rowwise and not self._verdict.vectors)

    @property
    def are_rowwise(self) -> bool:
        """Whether no item's result depends on another item."""
        if self.batch is None:
            return False
        return self.are_known or self._verdict.rowwise

    @lazy
    def _verdict(self) -> _Verdict:
        if not self._remember:
            return self._find()
        return _VERDICTS.of(self._model, self._arguments, self._find)

    def _find(self) -> _Verdict:
        assert self.batch is not None
        if not _are_batches(*self.results, self.batch):
            return _Verdict(False)
        vectors = any(
            _has_items(leaf, self.batch) and leaf.ndim == 1 and not _same(leaf, other)
            for leaf, other in zip(*map(pytree.tree_leaves, self.results), strict=True)
        )
        traces = self._traces
        rowwise = not self._makes_random and (
            self.batch < 2 or self._is_independent(*traces, thorough=False)
        )
        if not rowwise and not self._makes_random:
            traces = tuple(self._traced(v, thorough=True)[1] for v in self._examples)  # type: ignore[assignment]
            rowwise = self._is_independent(*traces, thorough=True)
        return _Verdict(rowwise, vectors)

    def _is_independent(self, first: BatchTrace, second: BatchTrace, thorough: bool) -> bool:
        """Whether mixtures of two passes come out as mixtures; each two items are mixed once at least."""
        assert self.batch is not None
        if first.couples or second.couples:
            return False
        for own in _splits(self.batch):
            mixture = [_chosen(own, a, b) for a, b in zip(*self._examples, strict=True)]
            result, trace = self._traced(mixture, thorough)
            mixed = _choose_rows(own, *self.results)
            if not (agree(result, mixed) and is_mixture(own, first, second, trace)):
                return False
        return True

    @property
    def are_cuttable(self) -> bool:
        """Whether some items alone give the rows that they have in the whole batch.

        ``torch.arange(len(x))`` beside the output does not depend on the input, and does on the batch.

        Returns:
            True if they do.
        """
        if self.are_known:
            return True
        if not self.are_rowwise:
            return False
        if self._verdict.cuttable is None:
            self._verdict.cuttable = self._gives_parts()
        return self._verdict.cuttable

    def _gives_parts(self) -> bool:
        batch = self.batch
        assert batch is not None
        half = torch.arange(batch // 2, batch, device="cpu")
        # one alone, too: a model that squeezes has another shape for it
        return self._gives_part(half) and (len(half) == 1 or self._gives_part(half[-1:]))

    def _gives_part(self, index: Tensor) -> bool:
        batch = self.batch
        assert batch is not None
        values = [value[index.to(value.device)] for value in self._examples[0]]
        with trial():
            found = self._run(values, self._arguments.cut(index))
        rows = pytree.tree_map(
            lambda leaf: leaf[index.to(leaf.device)] if _has_items(leaf, batch) else leaf,
            self.results[0],
        )
        return agree(found, rows)

    def check_cut(self, chunk: int | None) -> None:
        """Refuse to cut a batch that cannot be cut.

        Args:
            chunk: items at a time, if a user asks for that.

        Raises:
            ValueError: if there are fewer than in the batch, and their results would be others.
        """
        cut = chunk is not None and self.batch is not None and chunk < self.batch
        if cut and not self.are_cuttable:
            raise ValueError(refusal(chunk))

    @property
    def are_separable(self) -> bool:
        """Whether a batch may be cut, and joined with another: its size makes no difference either.

        Plain tensors among the arguments cannot be joined. A model that looks at values may take another
        branch for another batch. What was joined has to be confirmed afterwards (:meth:`confirm`).

        Returns:
            True if it may.
        """
        if self.batch is None or self._arguments.has_tensors:
            return False
        if self.are_known:
            return True
        if not self.are_rowwise:
            return False
        if self._verdict.separable is None:
            self._verdict.separable = self._joins()
        return self._verdict.separable

    def _joins(self) -> bool:
        batch = self.batch
        assert batch is not None
        if any(trace.looks_at_values for trace in self._traces):
            return False
        if batch == 1 and not self._doubled().are_rowwise:
            return False
        own = _splits(batch)[-1] if batch > 1 else torch.ones(1, dtype=torch.bool, device="cpu")
        joined = [
            torch.cat([_chosen(own, a, b), _chosen(~own, a, b)])
            for a, b in zip(*self._examples, strict=True)
        ]
        mixtures = _choose_rows(own, *self.results), _choose_rows(~own, *self.results)
        expected = pytree.tree_map(
            lambda *rows: torch.cat(rows) if _has_items(rows[0], batch) else rows[0], *mixtures
        )
        with trial():
            result = self._run(joined)
        return agree(result, expected)

    def _doubled(self) -> BatchItems:
        """The same item twice: one alone does not show what it would do to another."""
        a, b = ([torch.cat([value, value]) for value in values] for values in self._examples)
        twice = torch.zeros(2, dtype=torch.int64, device="cpu")
        return BatchItems(self._model, self._arguments.cut(twice), (a, b))

    def note(
        self, values: Sequence[Tensor], results: Any, arguments: Arguments | None = None
    ) -> None:
        """Remember the first of several samples that were run together, if they are the most so far.

        Args:
            values: of every random argument, ``(samples, *shape)``.
            results: the model's output for them, every tensor with a new first dimension.
            arguments: of some of the items, if it was not run on all.
        """
        count = len(values[0])
        if self.are_known or (self._witness is not None and self._witness.count >= count):
            return
        leaves = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
        first = [leaf[0].clone() for leaf in leaves]
        harmless = [
            _HARMLESS * leaf.std(0) if count > 1 and leaf.is_floating_point() else 0 * leaf[0]
            for leaf in leaves
        ]
        arguments = arguments or self._arguments
        sample = [value[0].clone() for value in values]
        self._witness = _Witness(count, arguments, sample, first, harmless)

    def confirm(self) -> bool:
        """Whether the sample that was noted comes out again if it is run alone.

        It would not if the number of samples makes a difference, if they influence each other, or if the
        model has state or randomness that is not seen.

        Returns:
            True if it does, or none was noted.
        """
        known = self._witness
        if known is None:
            return True
        before = random_states()
        with own_draws():
            found = self._run(known.values, known.arguments)
        if not same_states(before, random_states()) or _own_generators_were_used():
            return True  # it makes random numbers, and samples are to differ
        leaves = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor)]
        return len(leaves) == len(known.first) and all(
            map(_is_close, leaves, known.first, known.harmless)
        )

    def refute(self) -> bool:
        """Samples must not be joined any more.

        Returns:
            Whether they may have been until now.
        """
        self._witness = None
        were_joined = self.batch is not None and self._verdict.separable is not False
        if were_joined:
            self._verdict.separable = False
        return were_joined

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
        before = random_states()
        with trial():
            with trace:
                result = self._run(values, trace=trace)
            self._makes_random |= not same_states(before, random_states())
            self._makes_random |= _own_generators_were_used()
        return result, trace

    def _run(
        self,
        values: Sequence[Tensor],
        arguments: Arguments | None = None,
        trace: BatchTrace | None = None,
    ) -> Any:
        """What the model returns; None if it fails, as it may with a batch of another size."""
        arguments = arguments or self._arguments
        copies = [value.clone() for value in values]
        if trace is not None:
            trace.follow(copies)
        with torch.no_grad():
            try:
                return arguments.run(self._model, copies)
            except Exception:
                return None  # an error of the model's own comes up where it is run in earnest


@dataclass(frozen=True)
class _Witness:
    """One of several samples that were run together.

    Attributes:
        count: how many there were.
        arguments: what the model was run on.
        values: the sample, of every random argument.
        first: the tensors of its output.
        harmless: what each element may be off by.
    """

    count: int
    arguments: Arguments
    values: list[Tensor]
    first: list[Tensor]
    harmless: list[Tensor]


def _own_generators_were_used() -> bool:
    """Whether the model has used a random generator that it has itself."""
    state = current_state()
    return state is not None and any(generator.was_used for generator in state.generators)


def _is_close(found: Tensor, known: Tensor, harmless: Tensor) -> bool:
    """Whether two tensors are the same but for rounding, or for a part of their spread that is harmless."""
    if _same(found, known):
        return True
    if found.shape != known.shape or not found.is_floating_point():
        return False
    apart = (found - known).abs()
    return bool((apart.nan_to_num(torch.inf) <= harmless.nan_to_num(0)).all())


@functools.cache
def _splits(batch: int) -> tuple[Tensor, ...]:
    """Ways to take some of the items, ``(batch,)`` each: every two items are apart in one of them."""
    numbers = torch.arange(batch, device="cpu")
    return tuple((numbers >> bit) % 2 == 0 for bit in range((batch - 1).bit_length()))


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


def refusal(chunk: int | None) -> str:
    """What to say to a user who wants to cut a batch whose items' results depend on the batch."""
    return (
        "the model's batch elements influence each other, or its output has no batch dimension or depends on "
        f"the batch's size, so it cannot be run on chunk={chunk} of them at a time; leave chunk out"
    )
