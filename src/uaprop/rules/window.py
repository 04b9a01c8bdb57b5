"""Running sums, differences, sliding windows, and looking a tensor up on a grid."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random
from ..registry import rule
from .shape import refuse_integers

T = torch.Tensor


@rule(torch.cumsum, T.cumsum)
def cumsum(input: Random, dim: Any = None, *, dtype: Any = None, axis: Any = None) -> Linear:
    refuse_integers(dtype)
    where = dim if axis is None else axis

    def apply(x: Tensor) -> Tensor:
        return torch.cumsum(x, where, dtype=dtype)

    return Linear((input,), affine=apply, linear=apply, squared=apply)


@rule(torch.cumprod, T.cumprod, torch.logcumsumexp, T.logcumsumexp)
def running_product(input: Random, *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedOperation(
        "",
        reason="its results share factors or terms, and have no closed form together",
        remedy='Multiply or add step by step, or use method="samples".',
    )


@rule(torch.diff, T.diff)
def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """``Σ_k (-1)^{n-k} C(n, k) x_{i+k}``: for ``n > 1`` the steps between would be correlated."""
    if n == 0:  # torch does not even put the ends on
        return input
    if prepend is not None or append is not None:
        parts = [part for part in (prepend, input, append) if part is not None]
        return torch.diff(torch.cat(parts, dim), n, dim)
    count = input.shape[dim] - n

    def apply(x: Tensor) -> Tensor:
        return torch.diff(x, n, dim)

    def squared(v: Tensor) -> Tensor:
        if count <= 0:
            return apply(v)
        terms = [math.comb(n, k) ** 2 * v.narrow(dim, k, count) for k in range(n + 1)]
        return torch.stack(terms).sum(0)

    return Linear((input,), affine=apply, linear=apply, squared=squared)


@rule(torch.trace, T.trace)
def trace(input: Random) -> Linear:
    return Linear((input,), affine=torch.trace, linear=torch.trace, squared=torch.trace)


@rule(F.unfold)
def unfold_windows(
    input: Random, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Linear:
    """Windows side by side: every element is one of the input's, or zero."""

    def apply(x: Tensor) -> Tensor:
        return F.unfold(x, kernel_size, dilation, padding, stride)

    return Linear((input,), affine=apply, linear=apply, squared=apply)


@rule(F.fold)
def fold(
    input: Random,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Linear:
    """Windows summed back into place: all coefficients are 0 or 1."""

    def apply(x: Tensor) -> Tensor:
        return F.fold(x, output_size, kernel_size, dilation, padding, stride)

    return Linear((input,), affine=apply, linear=apply, squared=apply)


# ------------------------------------------------------------------ grids


@rule(F.affine_grid)
def affine_grid(theta: Random, size: Any, align_corners: bool | None = None) -> Any:
    raise UnsupportedOperation(
        "",
        reason="the grid would be random, and looking a tensor up at random places has no closed form",
        remedy='Use theta.mean, or method="samples".',
    )


@rule(F.grid_sample)
def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Linear:
    if isinstance(grid, Random):
        raise UnsupportedOperation(
            "",
            reason="its grid is random, and the value at a random place has no closed form",
            remedy='Use grid.mean, or method="samples".',
        )
    aligned = bool(align_corners)

    def apply(x: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding_mode, aligned)

    def squared(v: Tensor) -> Tensor:
        return _looked_up(v, grid.to(v.dtype), mode, padding_mode, aligned)

    return Linear((input,), affine=apply, linear=apply, squared=squared)


def _looked_up(v: Tensor, grid: Tensor, mode: str, padding: str, aligned: bool) -> Tensor:
    """Grid sampling with every coefficient squared.

    A coefficient is a product of one weight for each dimension. Where the padding makes two neighbours
    the same element, their weights add up before they are squared.

    Returns:
        Variances, ``(batch, channels, *places)``.
    """
    sizes = v.shape[2:]
    dims = len(sizes)
    batch, places = len(v), grid.shape[1:-1]
    taps = [
        _neighbours(grid[..., dims - 1 - i].reshape(batch, -1), sizes[i], mode, padding, aligned)
        for i in range(dims)
    ]
    flat = v.flatten(2)
    total = flat.new_zeros((batch, v.shape[1], places.numel()))
    for corner in itertools.product(*(range(len(where)) for where, _ in taps)):
        index = torch.zeros_like(taps[0][0][0])
        weight = torch.ones_like(taps[0][1][0])
        for (where, weights), k, size in zip(taps, corner, sizes, strict=True):
            index = index * size + where[k]
            weight = weight * weights[k]
        chosen = flat.gather(2, index.unsqueeze(1).expand(-1, v.shape[1], -1))
        total = total + weight.unsqueeze(1) * chosen
    return total.reshape(batch, v.shape[1], *places)


def _neighbours(
    at: Tensor, size: int, mode: str, padding: str, aligned: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Along one dimension: each neighbour's number, and its weight in the squared map.

    Neighbours ``n_k`` of weights ``w_k`` may coincide. Over the ``k`` with ``n_k = e``,
    ``(Σ_k w_k)² = Σ_k w_k Σ_l w_l [n_l = n_k]``.

    Returns:
        Numbers, all within the tensor, and weights, zero for what lies outside of it.
    """
    place = (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
    if mode != "bicubic":
        place = _within(place, size, padding, aligned)
    if mode == "nearest":
        numbers, weights = [torch.round(place)], [torch.ones_like(place)]
    elif mode == "bilinear":
        low = torch.floor(place)
        numbers, weights = [low, low + 1], [low + 1 - place, place - low]
    else:
        low = torch.floor(place)
        numbers = [_within(low + k, size, padding, aligned) for k in (-1, 0, 1, 2)]
        weights = [_cubic((place - low - k).abs()) for k in (-1, 0, 1, 2)]
    inside = [(n >= 0) & (n <= size - 1) for n in numbers]
    squares = [
        torch.where(
            kept, w * sum(torch.where(m == n, u, 0) for m, u in _pairs(numbers, weights)), 0
        )
        for kept, n, w in zip(inside, numbers, weights, strict=True)
    ]
    return [n.clamp(0, size - 1).long() for n in numbers], squares


def _pairs(numbers: list[Tensor], weights: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(numbers, weights, strict=True))


def _cubic(distance: Tensor) -> Tensor:
    """Keys' convolution kernel with torch's constant -3/4, for distances up to 2."""
    a = -0.75
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, far)


def _within(place: Tensor, size: int, padding: str, aligned: bool) -> Tensor:
    """A place outside of the tensor moved to its border, or reflected; left where it is for zeros."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
        if span > 0:
            away = (place - low).abs()
            turns, rest = torch.floor(away / span), torch.remainder(away, span)
            place = low + torch.where(turns.remainder(2) == 0, rest, span - rest)
        else:
            place = torch.zeros_like(place)
    return place.clamp(0, size - 1)
