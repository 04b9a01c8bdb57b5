"""Monte Carlo: run the model on draws of the input. Needs no rules, so it is the oracle for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..covariance import Finished
from ..covariance.base import per_batch_element
from ..gaussian import Gaussian
from .progress import Progress

__all__ = ["samples"]

_CHUNK_ELEMENTS = 2**18  # input elements that are in flight at once, by default
_DENSE_ELEMENTS = 2**22  # largest dense output covariance that is kept


def samples(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    samples: int = 1000,
    seed: int = 0,
    chunk: int | None = None,
) -> Any:
    """Estimate the output's mean and covariance from independent draws of the inputs.

    The model's own randomness (dropout in training mode) is sampled along.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        samples: how many draws, at least 2.
        seed: makes the answer reproducible.
        chunk: draws computed at once; bounds the memory. The draws do not depend on it.

    Returns:
        The model's answer, with Gaussians for its floating-point tensors. Relative standard error of
        a standard deviation: about ``1/√(2·samples)``.

    Raises:
        TypeError: if the numbers are not whole, or the model returns something random that is
            no floating-point tensor.
        ValueError: if there are fewer than 2 samples or the chunk is not positive.
    """
    if not isinstance(samples, int) or not isinstance(seed, int):
        raise TypeError(f"samples and seed must be whole numbers, not {samples!r} and {seed!r}")
    if samples < 2:
        raise ValueError(f"a variance needs at least 2 samples, not {samples}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    leaves, spec = pytree.tree_flatten(
        (args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Gaussian)
    )
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Gaussian)]
    elements = sum(leaves[i].numel() for i in places)
    size = chunk or 1  # one draw first, to see how large the output is

    def call(*draws: Tensor) -> Any:
        filled = list(leaves)
        for place, draw in zip(places, draws, strict=True):
            filled[place] = draw
        positional, keywords = pytree.tree_unflatten(filled, spec)
        return model(*positional, **keywords)

    run = _Batched(call)
    stream = _Stream([leaves[i] for i in places], seed)
    totals: list[_Accumulator] | None = None
    with torch.no_grad(), torch.random.fork_rng(), Progress(samples, "sampling") as progress:
        torch.manual_seed(_other_seed(seed))
        done = 0
        while done < samples:
            count = min(size, samples - done)
            outputs, out_spec = pytree.tree_flatten(run(*stream.take(count)))
            if totals is None:
                totals = [_Accumulator() for _ in outputs]
            for total, output in zip(totals, outputs, strict=True):
                total.add(output)
            done += count
            progress.advance(count)
            if chunk is None and done == 1:
                largest = sum(o.numel() for o in outputs if isinstance(o, Tensor))
                size = max(1, _CHUNK_ELEMENTS // max(elements, largest, 1))
    assert totals is not None
    return pytree.tree_unflatten([total.result() for total in totals], out_spec)


def _other_seed(seed: int) -> int:
    """A seed for the model's own noise: with the inputs' seed, the two would be correlated."""
    return int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))


class _Stream:
    """Draws of all inputs, made in blocks whose size depends on the inputs alone.

    So the draws are the same however many are taken at a time.
    """

    def __init__(self, inputs: list[Gaussian], seed: int) -> None:
        self.inputs = inputs
        self.generator = torch.Generator(inputs[0].device).manual_seed(seed)
        elements = max(1, sum(x.numel() for x in inputs))
        self.block = max(1, min(256, _CHUNK_ELEMENTS // elements))
        self.waiting = [x.loc.new_empty((0, *x.shape)) for x in inputs]

    def take(self, count: int) -> list[Tensor]:
        """The next ``count`` draws of every input."""
        while len(self.waiting[0]) < count:
            fresh = [x.loc + x.cov.deviations(self.block, self.generator) for x in self.inputs]
            pairs = zip(self.waiting, fresh, strict=True)
            self.waiting = [torch.cat(pair) for pair in pairs]
        taken = [draws[:count] for draws in self.waiting]
        self.waiting = [draws[count:] for draws in self.waiting]
        return taken


class _Batched:
    """Runs a function on stacked draws: vectorised if the function can be, else one by one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.vectorised = True

    def __call__(self, *draws: Tensor) -> Any:
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
        _same(values[0], other)
    return values[0]


def _same(first: Any, other: Any) -> None:
    """Whatever is no tensor must not depend on the draw: it would be one draw's value.

    Raises:
        TypeError: if the two differ.
    """
    plain = isinstance(first, bool | int | float | str | bytes)
    if not (first is other or (plain and type(first) is type(other) and first == other)):
        raise TypeError(
            f"the model returns a {type(first).__name__} that depends on its input; only tensors, in "
            "tuples, lists and dicts, have a mean and a variance"
        )


class _Accumulator:
    """Mean and covariance of a stream of draws, in float64 (Chan, Golub & LeVeque 1983)."""

    def __init__(self) -> None:
        self.count = 0
        self.constant: Any = None
        self.seen = False
        self.dtype = torch.float64
        self.mean = self.squares = torch.zeros(())
        self.products: Tensor | None = None

    def add(self, draws: Any) -> None:
        """Take in draws, stacked along the first dimension."""
        if not isinstance(draws, Tensor):
            if self.seen:
                _same(self.constant, draws)
            self.constant, self.seen = draws, True
            return
        if not draws.is_floating_point():
            raise TypeError(
                f"the model returns a tensor of {draws.dtype}, which has no Gaussian; return the "
                "scores it was computed from"
            )
        self.dtype = draws.dtype
        values = draws.double()
        count, mean = len(values), values.mean(0)
        offsets = values - mean
        flat = torch.stack([per_batch_element(row) for row in offsets])
        keep = flat[0].numel() * flat.shape[-1] <= _DENSE_ELEMENTS
        products = torch.einsum("n...i,n...j->...ij", flat, flat) if keep else None
        squares = offsets.square().sum(0)
        if self.count == 0:
            self.count, self.mean, self.squares, self.products = count, mean, squares, products
            return
        shift = mean - self.mean
        total = self.count + count
        weight = self.count * count / total
        self.squares = self.squares + squares + weight * shift.square()
        if products is not None and self.products is not None:
            step = per_batch_element(shift)
            outer = step.unsqueeze(-1) * step.unsqueeze(-2)
            self.products = self.products + products + weight * outer
        self.mean = self.mean + shift * (count / total)
        self.count = total

    def result(self) -> Any:
        """The Gaussian of everything taken in, or the constant if it was no tensor."""
        if self.count == 0:
            return self.constant
        scale = 1 / (self.count - 1)
        var = (self.squares * scale).to(self.dtype)
        dense = None if self.products is None else (self.products * scale).to(self.dtype)
        return Gaussian.from_covariance(self.mean.to(self.dtype), Finished(var, dense))
