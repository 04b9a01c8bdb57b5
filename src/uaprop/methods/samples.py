"""Monte Carlo: run the model on draws of the input. Needs no rules, so it is the oracle for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..covariance import Diagonal, Finished
from ..gaussian import Gaussian
from ..numerics.chance import reseeded, seeded
from ..provenance import Provenance
from .accumulate import Accumulator
from .arguments import Arguments
from .batched import Batched
from .options import whole_number, whole_numbers_if_given
from .progress import Progress
from .rowwise import is_rowwise
from .swift import Swift

__all__ = ["Batched", "Stream", "centred", "samples"]

_CHUNK_ELEMENTS = 2**18  # input elements that are in flight at once, by default
_CHUNK_ROWS = 384  # batch elements at once: more are no faster, however small they are
_AT_ONCE = 16  # normal numbers that torch makes at once
_BLOCK = 16  # draws made at a time, so that few are made in vain
_BLOCK_ELEMENTS = 2**18  # of which there may be so many elements
_WORTH_A_TRIAL = 2**14  # input elements of all draws, for which to see if they can go in one batch
_FEW, _LARGE = 4, 2**12  # so few draws of so many elements go one by one: a trial would not pay
_FEW_ROWS = 24  # batch elements of all draws, for which the trial's three would not pay


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
    chunk: int | None = None,
) -> Any:
    """Estimate the output's mean and covariance from draws of the inputs.

    The model's own randomness (dropout in training mode) is sampled along. Draws go through the model by the
    fastest way that gives the same (:mod:`~uaprop.methods.batched`, :mod:`~uaprop.methods.swift`).

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
        moderated: draw the variances towards what outputs and batch elements have in common, by as much
            as chance explains that they differ (:mod:`~uaprop.methods.pooling`). For few draws: where
            outputs are alike, as a classifier's scores are, four then know the deviations as well as eight
            or more without. Many draws change nothing, nor do outputs that are not alike, or so many that
            they have no dense covariance. Batch elements that share noise (:meth:`Gaussian.from_factors`,
            random weights) are kept apart.
        chunk: draws computed at once; bounds the memory. The draws do not depend on it.

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
    elements = sum(x.numel() for x in arguments.gaussians)
    size = group * max(1, (chunk or 1) // group)  # few draws first, to see how large the output is
    common = arguments.batch
    batch = None if arguments.has_tensors else common  # which would have to be repeated
    known = batch is not None and is_rowwise(model)
    few = chunk is None and not known and samples <= _FEW and elements >= _LARGE
    if known and chunk is None:
        size = group * max(1, min(_BLOCK, _fitting(elements, batch)) // group)
    elif few or samples * elements < _WORTH_A_TRIAL or samples * (batch or 0) < _FEW_ROWS:
        batch = None
    if chunk is None and 2 * elements > _CHUNK_ELEMENTS:
        batch = None  # there will be one draw at a time
    run = Batched(Swift(lambda *draws: arguments.run(model, draws)), batch, known)
    run.vectorised = not few
    stream = Stream(arguments.gaussians, seed, antithetic)
    centred = centred and not antithetic  # pairs have the mean zero already
    totals: list[Accumulator] | None = None
    own = nullcontext() if known else reseeded(seed, 1)  # the model's own randomness
    with torch.no_grad(), own, Progress(samples, "sampling") as progress:
        if centred:
            stream.centre(samples)
        done = 0
        while done < samples:
            count = min(size, samples - done)
            outputs, out_spec = pytree.tree_flatten(run(*stream.take(count)))
            if totals is None:
                totals = [Accumulator(group, centred) for _ in outputs]
            for total, output in zip(totals, outputs, strict=True):
                total.add(output)
            done += count
            progress.advance(count)
            if chunk is None and done == count:
                largest = sum(o.numel() for o in outputs if isinstance(o, Tensor)) // count
                size = group * max(1, _fitting(max(elements, largest), common) // group)
    assert totals is not None
    options = {"samples": samples, "seed": seed, "antithetic": antithetic, "centred": centred}
    told = Provenance("samples", options | {"moderated": moderated})
    # Factors, and what has no batch, are noise that batch elements may share.
    unshared = all(isinstance(x.cov, Diagonal | Finished) for x in arguments.gaussians)
    independent = unshared and common is not None
    results = [total.result(told, moderated, independent) for total in totals]
    return pytree.tree_unflatten(results, out_spec)


def _fitting(elements: int, batch: int | None) -> int:
    """How many draws of so many elements go at once."""
    return min(_CHUNK_ELEMENTS // max(elements, 1), _CHUNK_ROWS // (batch or 1))


class Stream:
    """Draws of all inputs, made in blocks whose size depends on the inputs alone.

    So the draws are the same however many are taken at a time. On a CPU torch makes normal numbers sixteen at
    a time, and calls for a multiple of that many follow on from each other: a single input of independent
    elements needs no larger blocks, and several of them can be made in one call.
    """

    def __init__(self, inputs: list[Gaussian], seed: int, antithetic: bool = False) -> None:
        self.inputs = inputs
        self.antithetic = antithetic
        self.generator = seeded(seed, device=inputs[0].device)
        elements = max(1, sum(x.numel() for x in inputs))
        first = inputs[0]
        self.seamless = (
            len(inputs) == 1 and isinstance(first.cov, Diagonal) and first.device.type == "cpu"
        )
        if self.seamless:
            self.block = _AT_ONCE // math.gcd(_AT_ONCE, elements)
        else:
            self.block = max(1, min(_BLOCK, _BLOCK_ELEMENTS // elements))
        self.waiting = [x.loc.new_empty((0, *x.shape)) for x in inputs]  # deviations, made ahead

    def take(self, count: int) -> list[Tensor]:
        """The next ``count`` draws of every input."""
        self._make(count)
        taken = [x.loc + ahead[:count] for x, ahead in zip(self.inputs, self.waiting, strict=True)]
        self.waiting = [ahead[count:] for ahead in self.waiting]
        return taken

    def centre(self, count: int) -> None:
        """Shift the next ``count`` draws to have the mean exactly zero and the same covariance."""
        self._make(count)
        for ahead in self.waiting:
            next_ones = ahead[:count]
            next_ones.sub_(next_ones.mean(0)).mul_(_widened(count))

    @torch.no_grad()
    def _make(self, count: int) -> None:
        """See that so many are waiting."""
        missing = count - len(self.waiting[0])
        if missing <= 0:
            return
        rounds = -(-missing // (self.block * (2 if self.antithetic else 1)))
        sizes = [rounds * self.block] if self.seamless else [self.block] * rounds
        blocks = [[self._deviations(x, size) for x in self.inputs] for size in sizes]
        if len(self.waiting[0]) > 0:
            blocks.insert(0, self.waiting)
        self.waiting = [
            parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*blocks, strict=True)
        ]

    def _deviations(self, x: Gaussian, count: int) -> Tensor:
        deviations = x.cov.deviations(count, self.generator)
        if self.antithetic:  # each next to its mirror image
            deviations = torch.stack([deviations, -deviations], 1).flatten(0, 1)
        return deviations


def centred(deviations: Tensor) -> Tensor:
    """Deviations shifted to have the mean exactly zero, with the same expected covariance."""
    return (deviations - deviations.mean(0)).mul_(_widened(len(deviations)))


def _widened(count: int) -> float:
    """By what to multiply as many draws, less their mean, to have their covariance."""
    return (count / (count - 1)) ** 0.5
