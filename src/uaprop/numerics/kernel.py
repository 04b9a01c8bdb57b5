"""Elementwise functions that run in one pass over memory, with or without gradients.

A :class:`Kernel` is a formula in plain torch, and knows three ways to run it: as it is, where a program is
being traced or transformed; compiled to one loop (:mod:`~uaprop.numerics.compiled`), or to one kernel of an
accelerator (:mod:`~uaprop.numerics.accelerated`); and in pieces that stay in the processor's cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .accelerated import ACCELERATORS
from .compiled import COMPILED, looped
from .moments import HALF, Moments, in_memory, untracked

__all__ = ["Kernel", "elementwise"]

Number = float | Tensor
_CHUNK = 2**15  # elements for each thread


class _Way(NamedTuple):
    """How to compute some of the moments, and their gradient.

    Attributes:
        formula: traceable and differentiable; returns them, and perhaps more.
        values: the same, for values whose derivatives nobody asks for.
        gradient: takes mean and variance, all that the formula returns if that is more, a gradient by
            each moment, and the numbers.
        size: how many moments.
    """

    formula: Callable[..., Sequence[Tensor]]
    values: Callable[..., Sequence[Tensor]]
    gradient: Callable[..., Sequence[Tensor]] | None
    size: int


class Kernel:
    """Moments of a scalar function; computed in float32 for half precision.

    Args:
        formula: takes mean and variance of one shape and further numbers, or tensors that broadcast to that
            shape; elementwise, traceable and differentiable. Its variance is not negative.
        gradient: takes the same, with the gradients of a loss by mean, gain and variance of the output in
            between, and returns those by mean and variance of the input. Without it the formula is
            differentiated.
        values: the formula with fewer allocations, for values whose derivatives nobody asks for.
        kept: mean and variance without the gain, and then what ``slopes`` would have to compute again.
        slopes: the gradient of these two: takes mean and variance, all that ``kept`` returns, the gradients
            by mean and variance of the output, and the numbers.
    """

    def __init__(
        self,
        formula: Callable[..., Moments],
        gradient: Callable[..., Sequence[Tensor]] | None = None,
        values: Callable[..., Moments] | None = None,
        kept: Callable[..., Sequence[Tensor]] | None = None,
        slopes: Callable[..., Sequence[Tensor]] | None = None,
    ) -> None:
        values = values or formula
        self._all = _Way(formula, values, gradient, 3)
        short = None if gradient is None else _without_gain(gradient)
        self._pair = _Way(_only_marginal(formula), _only_marginal(values), short, 2)
        self._taught = self._pair if kept is None else _Way(kept, kept, slopes, 2)

    def __call__(self, mean: Tensor, var: Tensor, *numbers: Number) -> Moments:
        """The moments, of the broadcast shape of mean and variance."""
        return Moments(*self._run(self._all, self._all, mean, var, numbers))

    def marginal(self, mean: Tensor, var: Tensor, *numbers: Number) -> tuple[Tensor, Tensor]:
        """Mean and variance alone: a third less to write."""
        first, second = self._run(self._pair, self._taught, mean, var, numbers)
        return first, second

    @staticmethod
    def _run(
        way: _Way, taught: _Way, mean: Tensor, var: Tensor, numbers: Sequence[Number]
    ) -> Sequence[Tensor]:
        """The moments in one way, or in another if gradients are recorded."""
        dtype = mean.dtype
        if dtype in HALF:
            wide = Kernel._run(way, taught, mean.float(), var.float(), numbers)
            return [t.to(dtype) for t in wide]
        bounds = [n for n in numbers if isinstance(n, Tensor)]
        if bounds or mean.shape != var.shape:  # a bound can have more elements than what it clamps
            mean, var, *_ = torch.broadcast_tensors(mean, var, *bounds)
        tensors = [mean, var, *bounds]
        if not in_memory(*tensors, also=ACCELERATORS) or var.dtype != dtype:
            return way.formula(mean, var, *numbers)
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
            return evaluate(way.formula, (mean, var), numbers, way.values)
        if taught.gradient is None or any(t.requires_grad for t in bounds):
            return way.formula(mean, var, *numbers)
        found: Sequence[Tensor] = _Differentiable.apply(taught, mean, var, *numbers)
        return found


def _only_marginal(function: Callable[..., Moments]) -> Callable[..., tuple[Tensor, Tensor]]:
    def marginal(*arguments: Any) -> tuple[Tensor, Tensor]:
        moments = function(*arguments)
        return moments.mean, moments.var

    marginal.__name__ = f"{function.__name__}_marginal"  # what it is called when compiled
    marginal.__module__ = function.__module__
    return marginal


def _without_gain(gradient: Callable[..., Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
    def marginal(mean: Tensor, var: Tensor, by_mean: Tensor, by_var: Tensor, *rest: Any) -> Any:
        return gradient(mean, var, by_mean, 0.0, by_var, *rest)

    marginal.__name__ = f"{gradient.__name__}_marginal"
    marginal.__module__ = gradient.__module__
    return marginal


class _Differentiable(torch.autograd.Function):
    """Moments with a gradient of their own."""

    @staticmethod
    def forward(
        ctx: Any, way: _Way, mean: Tensor, var: Tensor, *numbers: Number
    ) -> tuple[Tensor, ...]:
        found = evaluate(way.formula, (mean, var), numbers, way.values)
        ctx.way, ctx.numbers = way, numbers
        ctx.save_for_backward(mean, var, *(found if len(found) > way.size else ()))
        return tuple(found[: way.size])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        mean, var, *kept = ctx.saved_tensors
        way, numbers = ctx.way, ctx.numbers
        values = in_memory(*grads, also=ACCELERATORS)
        if torch.is_grad_enabled() or not values:  # a second derivative, or many at once
            if kept:  # with derivatives of its own
                kept = way.formula(mean, var, *numbers)
            found = way.gradient(mean, var, *kept, *grads, *numbers)
        else:
            found = evaluate(way.gradient, (mean, var, *kept, *grads), numbers)
        return None, *found, *(None for _ in numbers)


def elementwise(function: Callable[..., Any], *tensors: Tensor) -> Sequence[Tensor]:
    """An elementwise function of tensors: by :func:`evaluate` where they are values of one shape alone."""
    first = tensors[0]
    alike = all(t.shape == first.shape and t.dtype == first.dtype for t in tensors)
    found: Sequence[Tensor]
    found = evaluate(function, tensors) if alike and untracked(*tensors) else function(*tensors)
    return found


def evaluate(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    numbers: Sequence[Number] = (),
    values: Callable[..., Any] | None = None,
) -> Sequence[Tensor]:
    """An elementwise function without gradients: compiled, or in pieces.

    Args:
        function: of tensors of one shape, and of numbers or tensors that broadcast to it.
        tensors: its first arguments, of one shape and dtype.
        numbers: its further arguments.
        values: the same function for the case that it is not compiled.

    Returns:
        What the function returns, of the tensors' shape, and laid out in memory like the first.
    """
    first = tensors[0]
    shape = first.shape
    if first.numel() == 0 or first.dtype not in COMPILED:
        found: Sequence[Tensor] = (values or function)(*tensors, *numbers)
        return found
    if not _is_dense(first):
        first = first.contiguous()
    flat = [_like(t, first) for t in tensors]
    takes = "v" * len(flat)
    if numbers:
        extra = [_number(n, first) for n in numbers]
        takes += "".join("v" if n.ndim else "n" for n in extra)
        flat += extra
    results: Sequence[Tensor] | None = looped(function, takes, flat)
    if results is None:
        chosen = values if values is not None and first.is_cpu else function
        results = _in_pieces(chosen, flat, len(tensors), numbers)
    if len(shape) == 1:
        return results
    strides = first.stride()
    return [t.as_strided(shape, strides) for t in results]


def _in_pieces(
    function: Callable[..., Any], flat: list[Tensor], count: int, numbers: Sequence[Number]
) -> Sequence[Tensor]:
    """In pieces that stay in the cache, into place: to allocate memory costs more than to compute."""
    further = [t if t.ndim else n for t, n in zip(flat[count:], numbers, strict=True)]
    arguments = [*flat[:count], *further]
    length, size = flat[0].numel(), _CHUNK * torch.get_num_threads()
    if length <= size or not flat[0].is_cpu:
        found: Sequence[Tensor] = function(*arguments)
        return found
    results: list[Tensor] = []
    for start in range(0, length, size):
        piece = slice(start, start + size)
        cut = (a[piece] if isinstance(a, Tensor) and a.ndim else a for a in arguments)
        found = function(*cut)
        if not results:
            results = [flat[0].new_empty(length) for _ in found]
        for whole, part in zip(results, found, strict=True):
            whole[piece] = part
    return results


def _is_dense(tensor: Tensor) -> bool:
    """Whether it fills a piece of memory, in the usual order or with the channels last."""
    return tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """A vector of all elements, in the order that the other's have in memory, which is dense."""
    if tensor.stride() != other.stride():
        tensor = torch.empty_like(other).copy_(tensor)
    return tensor if tensor.ndim == 1 else tensor.as_strided((tensor.numel(),), (1,))


def _number(value: Number, like: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return _constant(float(value), like.dtype, like.device)
    value = value.to(like.dtype)
    return _like(value.expand(like.shape), like) if value.ndim else value


@functools.lru_cache(256)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=device)
