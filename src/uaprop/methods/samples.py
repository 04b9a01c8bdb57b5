"""Monte Carlo: run the model on samples of the input. Needs no rules, so it is the oracle for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from ..numerics.chance import RandomNumbers, reseeded
from ..provenance import Provenance
from .accumulate import Accumulator
from .arguments import Arguments
from .batch_independence import BatchItems
from .batched import Batched, stacked
from .options import check_distinct, check_keys, whole_number, whole_numbers_if_given
from .progress import Progress

__all__ = ["Batched", "Stream", "centred", "samples"]

_CHUNK_ELEMENTS = 2**18  # input elements that are in flight at once, by default
_CHUNK_ROWS = 384  # items at once: more are no faster, however small they are
_BLOCK = 16  # tensors of random numbers made at a time, to limit wasted ones
_MOST_OF_ITEMS = 256  # if all items have the same, so that many items have different ones at a time
_BLOCK_ELEMENTS = 2**18  # of which there may be so many elements
_WORTH_JOINING = (
    2**14
)  # input elements of all samples, for which to see if they can go in one batch
_FEW, _LARGE = 4, 2**12  # so few samples of so many elements go one by one
_FEW_ROWS = 24  # items of all samples, for which to see would not pay


def samples(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    samples: int = 1000,
    seed: int = 0,
    antithetic: bool = False,
    centred: bool = False,
    moderated: bool = False,
    keys: Sequence[int] | None = None,
    chunk: int | None = None,
) -> Any:
    """Estimate the output's mean and covariance from samples of the inputs.

    The model's own randomness (dropout in training mode) is sampled along. The model is run as it is; only
    samples are put into one batch where that gives the same (:mod:`~uaprop.methods.batched`). The items of a
    batch get the same noise, so that an item's result depends neither on its neighbours nor on its position;
    those that influence each other get independent noise (:mod:`~uaprop.methods.batch_independence`).

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        samples: how many draws, at least 2.
        seed: makes the answer reproducible.
        antithetic: draw pairs ``m ± ε``. The linear part of the noise then cancels in the mean, which
            becomes much more precise for small noise; the standard deviations become a
            little less so.
        centred: shift the draws to have the mean exactly zero. The linear part of the noise then cancels in
            the mean, as with antithetic pairs, and nothing else changes; the standard error of the mean
            does not know of it and is too large. All draws of the input are held in memory.
        moderated: shrink the variances of an item's outputs towards what they have in common, by as much
            as sampling noise explains that they differ (:mod:`~uaprop.methods.pooling`). For few samples:
            where outputs are alike, as a classifier's scores are, four then know the standard deviations as
            well as eight or more without. Many samples change nothing, nor do outputs that are not alike, or
            so many that they have no dense covariance.
        keys: an integer for each item, from which its noise is derived together with the seed. Then items
            have independent noise, and each the same in any batch.
        chunk: samples computed at once; bounds the memory. The samples do not depend on it.

    Returns:
        The model's answer, with Gaussians for its floating-point tensors, and the standard errors of
        their means and standard deviations (the latter about ``std/√(2·samples)``).

    Raises:
        ValueError: if antithetic draws are to be odd in number, or moderated.
    """
    whole_number("samples", samples, 2)
    whole_number("seed", seed, 0)
    whole_numbers_if_given(chunk=chunk)
    group = 2 if antithetic else 1
    if samples % group or samples < 2 * group:
        raise ValueError(f"antithetic draws come in pairs, two at least; samples={samples}")
    if moderated and antithetic:
        raise ValueError(
            "moderated=True needs draws that are independent, and antithetic ones are not; for a "
            "precise mean take centred=True"
        )
    arguments = Arguments(args, kwargs)
    check_keys(keys, arguments)
    centred = centred and not antithetic  # pairs have the mean zero already
    elements = sum(x.numel() for x in arguments.gaussians)
    common = arguments.batch
    known = BatchItems(model, arguments).are_known

    def start(items: bool) -> Stream:
        stream = Stream(arguments.gaussians, seed, antithetic, items, keys, samples)
        if centred:
            stream.centre(samples)
        return stream

    batch = common if _is_worth_joining(samples, elements, common, known, chunk) else None
    size = group * max(
        1, (chunk or 1) // group
    )  # few samples first, to see how large the output is
    if known and chunk is None:
        size = group * max(1, min(_BLOCK, _fitting(elements, common)) // group)
    own = nullcontext() if known else reseeded(seed, 1)  # the model's own randomness
    totals: list[Accumulator] | None = None
    done = 0

    def add(results: Any, count: int) -> Any:
        """Take in samples of the outputs."""
        nonlocal totals, done, size
        outputs, spec = pytree.tree_flatten(results)
        if totals is None:
            totals = [Accumulator(group, centred) for _ in outputs]
        for total, output in zip(totals, outputs, strict=True):
            total.add(output)
        if chunk is None and done == 0:
            largest = sum(o.numel() for o in outputs if isinstance(o, Tensor)) // count
            size = group * max(1, _fitting(max(elements, largest), common) // group)
        done += count
        progress.advance(count)
        return spec

    with torch.no_grad(), own, Progress(samples, "sampling") as progress:
        stream = start(items=common is not None)
        if common is not None and not known:
            pair = stream.take(2)
            items = BatchItems(model, arguments, ([x[0] for x in pair], [x[1] for x in pair]))
            joinable = batch is not None and items.are_separable
            batch = batch if joinable else None
            if items.are_independent:
                spec = add(stacked(list(items.results)), 2)
            else:
                check_distinct(keys)
                stream = start(items=False)
        run = Batched(lambda *values: arguments.run(model, values), batch)
        while done < samples:
            count = min(size, samples - done)
            spec = add(run(*stream.take(count)), count)
    assert totals is not None
    options = {"samples": samples, "seed": seed, "antithetic": antithetic, "centred": centred}
    told = Provenance("samples", options | {"moderated": moderated})
    results = [total.result(told, moderated) for total in totals]
    return pytree.tree_unflatten(results, spec)


def _is_worth_joining(
    samples: int, elements: int, batch: int | None, known: bool, chunk: int | None
) -> bool:
    """Whether samples go in one batch, if that is the same: not where to find out would not pay."""
    if batch is None or (chunk is None and 2 * elements > _CHUNK_ELEMENTS):
        return False  # there will be one sample at a time
    if known:
        return True
    few = chunk is None and samples <= _FEW and elements >= _LARGE
    return not few and samples * elements >= _WORTH_JOINING and samples * batch >= _FEW_ROWS


def _fitting(elements: int, batch: int | None) -> int:
    """How many samples of so many elements go at once."""
    return min(_CHUNK_ELEMENTS // max(elements, 1), _CHUNK_ROWS // (batch or 1))


class Stream:
    """Samples of all inputs; the same ones however many are taken at a time.

    Args:
        inputs: what to sample.
        seed: makes them reproducible.
        antithetic: whether they come in pairs ``m ± ε``.
        items: whether the inputs are batches of items that get the same noise
            (:class:`~uaprop.numerics.chance.RandomNumbers`).
        keys: a key for each item instead.
        total: how many will be taken, if that is known.
    """

    def __init__(
        self,
        inputs: list[Gaussian],
        seed: int,
        antithetic: bool = False,
        items: bool = False,
        keys: Sequence[int] | None = None,
        total: int | None = None,
    ) -> None:
        self.inputs = inputs
        self.group = 2 if antithetic else 1
        total = None if total is None else total // self.group
        self.noise = [
            RandomNumbers.seeded(
                seed,
                number,
                items=items,
                keys=keys,
                device=x.device,
                total=total,
                block=_block(x, items, keys is not None),
            )
            for number, x in enumerate(inputs)
        ]
        self.buffer = [x.loc.new_empty((0, *x.shape)) for x in inputs]  # deviations, made ahead

    def take(self, count: int) -> list[Tensor]:
        """The next ``count`` samples of every input."""
        self._make(count)
        taken = [x.loc + ahead[:count] for x, ahead in zip(self.inputs, self.buffer, strict=True)]
        self.buffer = [ahead[count:] for ahead in self.buffer]
        return taken

    def centre(self, count: int) -> None:
        """Shift the next ``count`` samples to have the mean exactly zero and the same covariance."""
        self._make(count)
        for ahead in self.buffer:
            next_ones = ahead[:count]
            next_ones.sub_(next_ones.mean(0)).mul_(_widened(count))

    @torch.no_grad()
    def _make(self, count: int) -> None:
        """See that so many are in the buffer."""
        missing = count - len(self.buffer[0])
        if missing <= 0:
            return
        parts = [
            self._deviations(x, noise, -(-missing // self.group))
            for x, noise in zip(self.inputs, self.noise, strict=True)
        ]
        self.buffer = [
            torch.cat(pair) if len(pair[0]) else pair[1]
            for pair in zip(self.buffer, parts, strict=True)
        ]

    def _deviations(self, x: Gaussian, noise: RandomNumbers, count: int) -> Tensor:
        deviations = x.cov.deviations(count, noise)
        if self.group > 1:  # each next to its mirror image
            deviations = torch.stack([deviations, -deviations], 1).flatten(0, 1)
        return deviations


def _block(x: Gaussian, items: bool, keyed: bool) -> int:
    """How many tensors of random numbers are made at a time: of items it does not depend on the batch."""
    elements = x.shape[1:].numel() if items or keyed else x.numel()
    most = _MOST_OF_ITEMS if items and not keyed else _BLOCK
    return max(1 if not items else _BLOCK, min(most, _BLOCK_ELEMENTS // max(1, elements)))


def centred(deviations: Tensor) -> Tensor:
    """Deviations shifted to have the mean exactly zero, with the same expected covariance."""
    return (deviations - deviations.mean(0)).mul_(_widened(len(deviations)))


def _widened(count: int) -> float:
    """By what to multiply as many draws, less their mean, to have their covariance."""
    return (count / (count - 1)) ** 0.5
