"""Monte Carlo: run the model on draws of the input. Needs no rules, so it is the oracle for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from ..numerics.chance import mixed, seeded
from ..provenance import Provenance
from .accumulate import Accumulator, same
from .arguments import Arguments
from .options import whole_number, whole_numbers_if_given
from .progress import Progress

__all__ = ["Batched", "Stream", "centred", "samples"]

_CHUNK_ELEMENTS = 2**18  # input elements that are in flight at once, by default


def samples(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    samples: int = 1000,
    seed: int = 0,
    antithetic: bool = False,
    centred: bool = False,
    chunk: int | None = None,
) -> Any:
    """Estimate the output's mean and covariance from draws of the inputs.

    The model's own randomness (dropout in training mode) is sampled along.

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
        chunk: draws computed at once; bounds the memory. The draws do not depend on it.

    Returns:
        The model's answer, with Gaussians for its floating-point tensors, and the standard errors of
        their means and standard deviations (the latter about ``std/√(2·samples)``).

    Raises:
        ValueError: if antithetic draws are to be odd in number.
    """
    whole_number("samples", samples, 2)
    whole_number("seed", seed, 0)
    whole_numbers_if_given(chunk=chunk)
    group = 2 if antithetic else 1
    if samples % group or samples < 2 * group:
        raise ValueError(f"antithetic draws come in pairs, two at least; samples={samples}")
    arguments = Arguments(args, kwargs)
    elements = sum(x.numel() for x in arguments.gaussians)
    size = group * max(1, (chunk or 1) // group)  # few draws first, to see how large the output is
    run = Batched(lambda *draws: arguments.run(model, draws))
    stream = Stream(arguments.gaussians, seed, antithetic)
    centred = centred and not antithetic  # pairs have the mean zero already
    if centred:
        stream.centre(samples)
    totals: list[Accumulator] | None = None
    with torch.no_grad(), torch.random.fork_rng(), Progress(samples, "sampling") as progress:
        torch.manual_seed(mixed(seed, 1))
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
                size = group * max(1, _CHUNK_ELEMENTS // max(elements, largest, 1) // group)
    assert totals is not None
    options = {"samples": samples, "seed": seed, "antithetic": antithetic, "centred": centred}
    told = Provenance("samples", options)
    return pytree.tree_unflatten([total.result(told) for total in totals], out_spec)


class Stream:
    """Draws of all inputs, made in blocks whose size depends on the inputs alone.

    So the draws are the same however many are taken at a time.
    """

    def __init__(self, inputs: list[Gaussian], seed: int, antithetic: bool = False) -> None:
        self.inputs = inputs
        self.antithetic = antithetic
        self.generator = seeded(seed, device=inputs[0].device)
        elements = max(1, sum(x.numel() for x in inputs))
        self.block = max(1, min(256, _CHUNK_ELEMENTS // elements))
        self.waiting = [x.loc.new_empty((0, *x.shape)) for x in inputs]

    def take(self, count: int) -> list[Tensor]:
        """The next ``count`` draws of every input."""
        while len(self.waiting[0]) < count:
            fresh = [self._draws(x) for x in self.inputs]
            pairs = zip(self.waiting, fresh, strict=True)
            self.waiting = [torch.cat(pair) for pair in pairs]
        taken = [draws[:count] for draws in self.waiting]
        self.waiting = [draws[count:] for draws in self.waiting]
        return taken

    def centre(self, count: int) -> None:
        """Shift the next ``count`` draws to have the mean exactly zero and the same covariance."""
        draws = [
            centred(taken - x.loc) for taken, x in zip(self.take(count), self.inputs, strict=True)
        ]
        ahead = [x.loc + offsets for x, offsets in zip(self.inputs, draws, strict=True)]
        self.waiting = [torch.cat(pair) for pair in zip(ahead, self.waiting, strict=True)]

    def _draws(self, x: Gaussian) -> Tensor:
        deviations = x.cov.deviations(self.block, self.generator)
        if self.antithetic:  # each next to its mirror image
            deviations = torch.stack([deviations, -deviations], 1).flatten(0, 1)
        return x.loc + deviations


def centred(deviations: Tensor) -> Tensor:
    """Deviations shifted to have the mean exactly zero, with the same expected covariance."""
    count = len(deviations)
    return (deviations - deviations.mean(0)) * (count / (count - 1)) ** 0.5


class Batched:
    """Runs a function on stacked draws: vectorised if the function can be, else one by one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.vectorised = True

    def __call__(self, *draws: Tensor) -> Any:
        """The function's answers, stacked along the first dimension."""
        if self.vectorised:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", UserWarning)  # vmap warns where it would be slow
                    return torch.vmap(self.function, randomness="different")(*draws)
            except Exception:
                # Not every program can be vectorised; a real error will come up again below.
                self.vectorised = False
        answers = [self.function(*rows) for rows in zip(*draws, strict=True)]
        return pytree.tree_map(lambda *values: _stacked(values), *answers)


def _stacked(values: tuple[Any, ...]) -> Any:
    if isinstance(values[0], Tensor):
        return torch.stack(values)
    for other in values[1:]:
        same(values[0], other)
    return values[0]
