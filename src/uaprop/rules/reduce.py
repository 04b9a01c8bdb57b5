"""Sums and averages over dimensions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..kinds import Linear, Random
from ..registry import rule

T = torch.Tensor


@rule(torch.sum, T.sum)
def sum(input: Random, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Linear:
    def apply(x: Tensor) -> Tensor:
        return torch.sum(x, dim, keepdim, dtype=dtype)

    return Linear((input,), affine=apply, linear=apply, squared=apply)


@rule(torch.mean, T.mean)
def mean(input: Random, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Linear:
    if dim is None or (isinstance(dim, list | tuple) and len(dim) == 0):
        count = math.prod(input.shape)
    else:
        dims = [dim] if isinstance(dim, int) else dim
        count = math.prod(input.shape[d] for d in dims)

    def apply(x: Tensor) -> Tensor:
        return torch.mean(x, dim, keepdim, dtype=dtype)

    return Linear((input,), affine=apply, linear=apply, squared=lambda v: apply(v) / count)
