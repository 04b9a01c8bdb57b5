"""The product of elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kinds import Joint, Linear, Random
from ..registry import rule
from .extremes import Dims
from .shape import refuse_integers

T = torch.Tensor


def _moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``Π m`` and variance ``Π (m² + v) - Π m²`` of independent elements along the first dimension.

    As a sum of positive terms, ``Σ_i v_i Π_{j<i} (m_j² + v_j) Π_{j>i} m_j²``.

    Returns:
        Both, without the first dimension.
    """
    one = torch.ones_like(mean[:1])
    square = mean.square()
    before = torch.cat([one, (square + var)[:-1]]).cumprod(0)
    after = torch.cat([one, square.flip(0)[:-1]]).cumprod(0).flip(0)
    return mean.prod(0), (before * var * after).sum(0)


def _composed(x: Any) -> Any:
    """Products of pairs, of pairs of pairs and so on, along the first dimension."""
    while len(x) > 1:
        half = len(x) // 2
        pairs = x[:half] * x[half : 2 * half]
        x = pairs if 2 * half == len(x) else torch.cat([pairs, x[-1:]])
    return x[0]


@rule(torch.prod, T.prod, source="Goodman (1962)")
def prod(input: Any, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dtype is not None:
        refuse_integers(dtype)
        input = input.to(dtype)
    if input.ndim == 0:
        return input

    def function(x: Tensor) -> Tensor:
        return torch.prod(x) if dim is None else torch.prod(x, dim, keepdim)

    over = list(range(input.ndim)) if dim is None else [dim % input.ndim]
    dims = Dims(over, [d for d in range(input.ndim) if d not in over], keepdim and dim is not None)
    if input.shape.numel() == 0:  # the product of nothing is one
        return Linear(
            (input,),
            affine=function,
            linear=lambda x: torch.zeros_like(function(x)),
            squared=lambda v: torch.zeros_like(function(v)),
        )

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        working = torch.promote_types(mean.dtype, torch.float32)
        _, spread = _moments(dims.front(mean).to(working), dims.front(var).to(working))
        return function(mean), spread.reshape(dims.shape(mean)).to(mean.dtype)

    def composed(x: Random) -> Any:
        return _composed(dims.front(x)).reshape(dims.shape(x))

    return Joint((input,), function, moments, composed)
