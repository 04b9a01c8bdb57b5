"""Sorted values: ``sort``, ``topk``, ``kthvalue`` and the median.

The values are order statistics. *Which* elements they are is random: the indices refuse to be used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import return_types as types

from ..errors import UnsupportedOperation
from ..kinds import Joint, Random
from ..numerics.order_statistics import is_certain, order_statistics, work
from ..registry import rule
from .extremes import with_index

T = torch.Tensor
SOURCE = (
    "order statistics by quadrature; Clark (1961) at every exchange where elements are correlated"
)
_NAMES = "torch.sort, torch.topk or torch.median"
_MOST = 2**29  # values
_RIVALS = 8  # elements that may change places with one of them, itself included
_APART = 3.0  # standard deviations of their difference


def _exchanges(count: int) -> list[tuple[list[int], list[int]]]:
    """Which pairs are compared, round by round: Batcher's odd-even merge sort (1968)."""
    rounds = []
    size = 1
    while size < count:
        gap = size
        while gap:
            lows, highs = [], []
            for start in range(gap % size, count - gap, 2 * gap):
                for i in range(start, min(start + gap, count - gap)):
                    if i // (2 * size) == (i + gap) // (2 * size):
                        lows.append(i)
                        highs.append(i + gap)
            if lows:
                rounds.append((lows, highs))
            gap //= 2
        size *= 2
    return rounds


def _exchanged(x: Any) -> Any:
    """Sorted along the first dimension, by the larger and the smaller of pairs; in rising order."""
    _check_rivals(x.loc.detach(), x.cov.var.detach())
    for lows, highs in _exchanges(len(x)):
        a, b = x[lows], x[highs]
        larger = torch.maximum(a, b)
        smaller = a + b - larger
        index = torch.tensor([*lows, *highs], device=x.device)
        x = x.index_copy(0, index, torch.cat([smaller, larger]))
    return x


def _check_rivals(mean: Tensor, var: Tensor) -> None:
    """Refuse rows along the first dimension in which many elements may change places.

    Every exchange takes its results for Gaussian. Where more than a few elements compete, the values in the
    middle come out up to half a standard deviation off.

    Raises:
        UnsupportedOperation: if there is such a row.
    """
    if torch.compiler.is_compiling() or mean.is_meta:
        return
    for m, v in zip(mean, var, strict=True):
        near = (mean - m).square() < _APART**2 * (var + v)
        if bool((near.sum(0) >= _RIVALS).any()):
            raise UnsupportedOperation(
                _NAMES,
                reason=f"{_RIVALS} or more elements of a row are so close that their order is random, and "
                "their correlation has no closed form",
                remedy='Use method="hybrid" or "samples"; or "diagonal", if they are independent.',
            )


def _sorted(input: Any, dim: int, first: int, last: int, descending: bool) -> Any:
    """The values of the ranks from ``first`` to ``last`` in rising order, or the same in falling order."""
    if input.ndim == 0:
        return input
    count, dim = input.shape[dim], dim % input.ndim
    if input.shape.numel() == 0 or first == last:
        return input.narrow(dim, 0, last - first)

    def cut(x: Any) -> Any:
        x = x.narrow(dim, first, last - first)
        return x.flip(dim) if descending else x

    as_it_is = input.cov.needs_functions  # samples are sorted as they are
    if not as_it_is and not torch.compiler.is_compiling() and not input.loc.is_meta:
        mean, var = (t.detach().movedim(dim, -1) for t in (input.loc, input.cov.var))
        if is_certain(mean, var):
            return cut(torch.take_along_dim(input, input.loc.argsort(dim), dim))

    def function(x: Tensor) -> Tensor:
        return cut(torch.sort(x, dim).values)

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        rows, spreads = mean.movedim(dim, -1), var.movedim(dim, -1)
        _check_work(count, rows.numel() // count, min(last, count - first))
        value, spread = (t.movedim(-1, dim) for t in order_statistics(rows, spreads, first, last))
        value, spread = ((t.flip(dim) if descending else t) for t in (value, spread))
        certain = (var == 0).all(dim, keepdim=True)
        return torch.where(certain, function(mean), value), torch.where(certain, 0, spread)

    def composed(x: Random) -> Any:
        return cut(_exchanged(x.movedim(dim, 0)).movedim(0, dim))  # type: ignore[attr-defined]

    return Joint((input,), function, moments, None if as_it_is else composed)


def _check_work(count: int, rows: int, ranks: int) -> None:
    if work(count, rows, ranks) > _MOST:
        raise UnsupportedOperation(
            _NAMES,
            reason=f"the order statistics of {rows} rows of {count} elements take too long",
            remedy='Sort fewer elements, or use method="hybrid" or "samples".',
        )


# An operation of its own, so that values and indices can be returned together.
def order(input: Any, dim: int, first: int, last: int, descending: bool) -> Any:
    """Sorted values of the given ranks."""
    if torch.overrides.has_torch_function_unary(input):
        arguments = (input, dim, first, last, descending)
        return torch.overrides.handle_torch_function(order, (input,), *arguments)
    values = torch.sort(input, dim).values.narrow(dim, first, last - first)
    return values.flip(dim) if descending else values


@rule(order, exact=False, source=SOURCE)
def order_of(input: Any, dim: int, first: int, last: int, descending: bool) -> Any:
    return _sorted(input, dim, first, last, descending)


def _size(input: Any, dim: int) -> int:
    return int(input.shape[dim]) if input.ndim else 1


@rule(torch.sort, T.sort, exact=False, source=SOURCE)
def sort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return with_index(types.sort, order(input, dim, 0, _size(input, dim), descending))


@rule(torch.msort, T.msort, exact=False, source=SOURCE)
def msort(input: Any) -> Any:
    return order(input, 0, 0, _size(input, 0), False)


@rule(torch.topk, T.topk, exact=False, source=SOURCE)
def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    count = _size(input, dim)
    if not 0 <= k <= count:
        raise ValueError(f"topk: k is {k}, and there are {count} elements")
    first = count - k if largest else 0
    return with_index(types.topk, order(input, dim, first, first + k, largest))


def _one(input: Any, rank: int, dim: int, keepdim: bool) -> Any:
    value = order(input, dim, rank, rank + 1, False)
    if input.ndim and not keepdim:
        value = value.squeeze(dim)
    return value


@rule(torch.kthvalue, T.kthvalue, exact=False, source=SOURCE)
def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not 1 <= k <= _size(input, dim):
        raise ValueError(f"kthvalue: k is {k}, and there are {_size(input, dim)} elements")
    return with_index(types.kthvalue, _one(input, k - 1, dim, keepdim))


@rule(torch.median, T.median, exact=False, source=SOURCE)
def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower one of two in the middle, as torch has it."""
    if dim is None:
        flat = input.flatten()
        return _one(flat, (flat.shape[0] - 1) // 2, 0, False)
    value = _one(input, (_size(input, dim) - 1) // 2, dim, keepdim)
    return with_index(types.median, value)
