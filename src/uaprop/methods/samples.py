"""Monte Carlo: run the model on samples of the input. Needs no rules, so it is the oracle for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from ..numerics.chance import RandomNumbers, reseeded
from ..numerics.quasi_random import Replicates, ScrambledNets
from ..provenance import Provenance
from .accumulate import Accumulator
from .arguments import Arguments
from .batch_independence import UNSEEN_STATE, BatchItems
from .batched import Batched
from .centred import CentredAccumulator, blocks, centred_noise
from .options import check_distinct, check_keys, whole_number, whole_numbers_if_given
from .plain_samples import fitting, is_worth_joining
from .progress import Progress
from .regressed_replicates import RegressedReplicates, can_regress
from .replicates import ReplicateAccumulator
from .user_warning import warn_user

__all__ = ["Batched", "Stream", "samples"]

_BLOCK = 16  # tensors of random numbers made at a time, to limit wasted ones
_MOST_OF_ITEMS = 256  # if all items have the same, so that many items have different ones at a time
_BLOCK_ELEMENTS = 2**18  # of which there may be so many elements


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
    qmc: bool = False,
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
        samples: how many, at least 2; with ``qmc`` 16.
        seed: makes the answer reproducible.
        antithetic: draw pairs ``m ± ε``. The linear part of the noise then cancels in the mean, which
            becomes much more precise for small noise; the standard deviations become a
            little less so.
        centred: shift the samples to have the mean exactly zero, in four blocks, or in eight from 128 on.
            The linear part of the noise then cancels in the mean, as with antithetic pairs, and little else
            changes. How the blocks differ tells the standard error of the mean; fewer than 16 samples are
            one block, and their standard error of the mean is too large. All noise is held in memory.
        moderated: shrink the variances of an item's outputs towards what they have in common, by as much
            as sampling noise explains that they differ (:mod:`~uaprop.methods.pooling`). For few samples:
            where outputs are alike, as a classifier's scores are, four then know the standard deviations as
            well as eight or more without. Many samples change nothing, nor do outputs that are not alike, or
            so many that they have no dense covariance.
        qmc: scrambled Sobol' points in place of random numbers (Owen 1995, 1998), one dimension for each
            source of noise: an element with a variance, or a factor that elements share. For few sources, up
            to some 64: errors are several times smaller, of the mean always and of the standard deviation
            from some hundred samples on. Powers of two are best. There are four independent scramblings of
            ``samples/4`` points, or eight from 1024 samples on. They give the standard errors (L'Ecuyer &
            Lemieux 2002), which are themselves known to about 40%, or 27% with eight.
        keys: an integer for each item, from which its noise is derived together with the seed. Then items
            have independent noise, and each the same in any batch.
        chunk: samples computed at once; bounds the memory. The samples do not depend on it.

    Returns:
        The model's answer, with Gaussians for its floating-point tensors, and the standard errors of
        their means and standard deviations (the latter about ``std/√(2·samples)``, without ``qmc``).

    Raises:
        ValueError: if antithetic samples are to be odd in number, or moderated; if quasi-random ones cannot
            be divided, are to be something else as well, or have too many sources.
    """
    whole_number("samples", samples, 16 if qmc else 2)
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
    others = {"antithetic": antithetic, "centred": centred, "moderated": moderated}
    if qmc and (given := [name for name, value in others.items() if value]):
        raise ValueError(
            f"qmc=True takes the place of {given[0]}=True; leave one of them out: quasi-random samples have "
            "nearly the right mean as they are, and are not independent of each other"
        )
    arguments = Arguments(args, kwargs)
    check_keys(keys, arguments)
    options = {"samples": samples, "seed": seed, "antithetic": antithetic, "centred": centred}
    told = Provenance("samples", options | {"moderated": moderated, "qmc": qmc})
    plan = _Plan(
        samples,
        seed,
        group,
        centred=blocks(samples) if centred and not antithetic else (),  # pairs have the mean zero
        replicates=Replicates(samples) if qmc else None,
        keys=keys,
        chunk=chunk,
    )
    totals, spec = _confirmed(model, arguments, plan)
    return pytree.tree_unflatten([total.result(told, moderated) for total in totals], spec)


@dataclass(frozen=True)
class _Plan:
    """Which samples to take.

    Attributes:
        samples: how many.
        seed: of the samples.
        group: samples in a group; 2 of antithetic pairs.
        centred: the sizes of blocks that have the mean zero; none if they are not centred.
        replicates: of quasi-random samples; None for random ones.
        keys: an integer for each batch element.
        chunk: samples at a time.
    """

    samples: int
    seed: int
    group: int
    centred: Sequence[int]
    replicates: Replicates | None
    keys: Sequence[int] | None
    chunk: int | None

    def stream(self, inputs: list[Gaussian], items: bool) -> Stream:
        """The samples, the same ones for all items of the batch or independent ones."""
        return Stream(
            inputs,
            self.seed,
            self.group > 1,
            items,
            self.keys,
            self.samples,
            self.replicates,
            self.centred,
        )


def _confirmed(
    model: Callable[..., Any], arguments: Arguments, plan: _Plan
) -> tuple[list[Accumulator], pytree.TreeSpec]:
    """Samples whose first one came out again when it was run alone, after all others."""
    for join in (True, False):
        run = _Sampling(model, arguments, plan, join)
        own = nullcontext() if run.known else reseeded(plan.seed, 1)  # the model's own randomness
        with torch.no_grad(), own:
            run()
            if run.items.confirm():
                return run.totals, run.spec
            if not run.joined:
                break
            run.items.refute()  # also for the next call
    warn_user(UNSEEN_STATE)
    return run.totals, run.spec


class _Sampling:
    """One run over all samples.

    Args:
        model: any callable on tensors.
        arguments: its arguments.
        plan: which samples to take.
        join: whether they may go through the model together.

    Attributes:
        items: what is known of the batch.
        known: whether its items are known to be independent.
        joined: whether samples went through the model together.
        totals: what the samples add up to, for every output.
        spec: the structure of the outputs.
    """

    def __init__(
        self, model: Callable[..., Any], arguments: Arguments, plan: _Plan, join: bool
    ) -> None:
        self._model, self._arguments, self._plan = model, arguments, plan
        self.items = BatchItems(model, arguments)
        self.known = self.items.are_known
        self._elements = sum(x.numel() for x in arguments.gaussians)
        self._rows = common = arguments.batch  # items that do not influence each other
        worth = is_worth_joining(plan.samples, self._elements, common, self.known, plan.chunk)
        self.joined = join and worth
        self._done = self._outputs = 0  # samples; elements of the outputs of one
        self.totals: list[Accumulator] = []
        self.spec: pytree.TreeSpec

    def __call__(self) -> None:
        """Take all samples."""
        plan, inputs = self._plan, self._arguments.gaussians
        with Progress(plan.samples, "sampling") as progress:
            stream = plan.stream(inputs, items=self._rows is not None)
            if self._rows is not None and not self.known:
                stream = self._try(stream)
                progress.advance(self._done)
            batch = self._arguments.batch if self.joined else None
            run = Batched(
                lambda *values: self._arguments.run(self._model, values), batch, self.items.note
            )
            while self._done < plan.samples:
                count = min(self._size(), plan.samples - self._done)
                noise = stream.noise_of(count)
                results = run(*(x.loc + e for x, e in zip(inputs, noise, strict=True)))
                self._add(results, count, noise)
                progress.advance(count)
            self.joined = self.joined and run.batch is not None

    def _try(self, stream: Stream) -> Stream:
        """Find out about the batch on two samples.

        They are not counted: what is remembered of the batch is not tried again, and the same samples would
        be run in other batches by the next call.

        Returns:
            The stream to take samples from.
        """
        plan, inputs = self._plan, self._arguments.gaussians
        # quasi-random items have all the same noise, which would hide that some are exchanged
        random = plan.replicates is None
        trial = stream if random else Stream(inputs, plan.seed, items=True)
        noise = trial.peek(2)
        pair = [[x.loc + e[i] for x, e in zip(inputs, noise, strict=True)] for i in (0, 1)]
        # nor would the result show that what is remembered does not hold any more
        self.items = BatchItems(self._model, self._arguments, (pair[0], pair[1]), remember=random)
        self.joined = self.joined and self.items.are_separable
        if not self.items.are_independent:
            self._rows = None
            check_distinct(plan.keys)
            return plan.stream(inputs, items=False)
        return stream

    def _size(self) -> int:
        """How many samples go at a time: few at first, to see how large the output is."""
        group, batch = self._plan.group, self._arguments.batch
        if self._plan.chunk is not None:
            most = self._plan.chunk
        elif self._done:
            most = fitting(max(self._elements, self._outputs), batch)
        else:
            most = min(_BLOCK, fitting(self._elements, batch)) if self.known else 1
        return group * max(1, most // group)

    def _add(self, results: Any, count: int, noise: Sequence[Tensor]) -> None:
        """Take in samples of the outputs, and the noise that they are of."""
        outputs, self.spec = pytree.tree_flatten(results)
        if not self.totals:
            self._outputs = sum(o.numel() for o in outputs if isinstance(o, Tensor)) // count
            self.totals = [self._accumulator() for _ in outputs]
        for total, output in zip(self.totals, outputs, strict=True):
            if isinstance(total, RegressedReplicates):
                total.add_with_noise(output, noise)
            else:
                total.add(output)
        self._done += count

    def _accumulator(self) -> Accumulator:
        plan = self._plan
        if plan.replicates is None:
            if len(plan.centred) > 1:
                return CentredAccumulator(plan.centred)
            return Accumulator(plan.group, bool(plan.centred))
        points, inputs = plan.replicates.points, self._arguments.gaussians
        if can_regress(plan.samples, self._elements // (self._rows or 1)):
            return RegressedReplicates(points, inputs, self._rows)
        return ReplicateAccumulator(points)


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
        replicates: to take scrambled nets of points in place of random numbers.
        centred: sizes of blocks of samples that are shifted to have the mean exactly zero. They are made at
            once, and there are no others.
    """

    def __init__(
        self,
        inputs: list[Gaussian],
        seed: int,
        antithetic: bool = False,
        items: bool = False,
        keys: Sequence[int] | None = None,
        total: int | None = None,
        replicates: Replicates | None = None,
        centred: Sequence[int] = (),
    ) -> None:
        self.inputs = inputs
        self.group = 2 if antithetic else 1
        self.buffer = [x.loc.new_empty((0, *x.shape)) for x in inputs]  # deviations, made ahead
        self.noise: Sequence[RandomNumbers]
        if replicates is not None:
            nets = ScrambledNets(replicates, seed, items, keys)
            self.noise = [nets.numbers() for _ in inputs]
            self._ask_for_none()
            nets.allot()
            return
        if centred:
            self.buffer = centred_noise(inputs, centred, seed, items, keys)
            return
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

    def take(self, count: int) -> list[Tensor]:
        """The next ``count`` samples of every input."""
        pairs = zip(self.inputs, self.noise_of(count), strict=True)
        return [x.loc + noise for x, noise in pairs]

    def peek(self, count: int) -> list[Tensor]:
        """The noise of the next ``count`` samples, which stay the next ones."""
        self._make(count)
        return [ahead[:count] for ahead in self.buffer]

    def noise_of(self, count: int) -> list[Tensor]:
        """The noise of the next ``count`` samples of every input: the samples less the mean."""
        self._make(count)
        taken = [ahead[:count] for ahead in self.buffer]
        self.buffer = [ahead[count:] for ahead in self.buffer]
        return taken

    @torch.no_grad()
    def _ask_for_none(self) -> None:
        """So that every input says which sources it has."""
        for x, noise in zip(self.inputs, self.noise, strict=True):
            x.cov.deviations(0, noise)

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
