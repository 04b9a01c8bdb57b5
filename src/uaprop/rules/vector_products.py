"""Inner, cross and Kronecker products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kinds import Linear, Random
from ..registry import rule
from .contract import dot, product, square, without_broadcast

T = torch.Tensor


@rule(torch.vdot, T.vdot)
def vdot(input: Any, other: Any) -> Any:
    return dot(input, other)


@rule(torch.linalg.vecdot)
def vecdot(x: Any, y: Any, *, dim: int = -1) -> Any:
    if x is y:
        return torch.sum(torch.square(x), dim)
    ndim = max(x.ndim, y.ndim)
    x, y = (t.reshape([1] * (ndim - t.ndim) + list(t.shape)) for t in (x, y))
    x, y = without_broadcast(x, dim, y, dim)
    return product(lambda a, b, _: torch.linalg.vecdot(a, b, dim=dim), x, y)


@rule(torch.kron, T.kron)
def kron(input: Any, other: Any) -> Any:
    return product(lambda x, y, _: torch.kron(x, y), input, other)


@rule(torch.cross, T.cross)
def cross(input: Any, other: Any, dim: int | None = None) -> Any:
    if dim is None:  # the first of size 3, as torch has it
        shape = torch.broadcast_shapes(input.shape, other.shape)
        if 3 not in shape:
            raise ValueError(f"cross: no dimension of {tuple(shape)} has size 3")
        dim = list(shape).index(3) - len(shape)
    return torch.linalg.cross(input, other, dim=dim)


@rule(torch.linalg.cross)
def linalg_cross(input: Any, other: Any, *, dim: int = -1) -> Any:
    """``a_{k+1} b_{k+2} - a_{k+2} b_{k+1}``; of independent elements the two terms are independent."""
    if input is other:
        return Linear((input,), torch.zeros_like, torch.zeros_like, torch.zeros_like)
    if isinstance(input, Random) and isinstance(other, Random):
        (a, c), (d, b) = ([t.roll(-k, dim) for k in (1, 2)] for t in (input, other))  # type: ignore[attr-defined]
        return a * b - c * d

    def squared(v: Tensor, factor: Tensor) -> Tensor:
        w = square(factor)
        result = v.roll(-1, dim) * w.roll(-2, dim) + v.roll(-2, dim) * w.roll(-1, dim)
        return result.to(v.dtype)

    if isinstance(input, Random):
        return Linear(
            (input,),
            affine=lambda x: torch.linalg.cross(x, other, dim=dim),
            linear=lambda x: torch.linalg.cross(x, other, dim=dim),
            squared=lambda v: squared(v, other),
        )
    return Linear(
        (other,),
        affine=lambda y: torch.linalg.cross(input, y, dim=dim),
        linear=lambda y: torch.linalg.cross(input, y, dim=dim),
        squared=lambda v: squared(v, input),
    )
