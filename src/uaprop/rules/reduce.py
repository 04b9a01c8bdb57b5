"""Sums and averages over dimensions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..kinds import Linear, Random
from ..registry import rule
from .shape import refuse_integers

T = torch.Tensor


@rule(torch.sum, T.sum)
def sum(
    input: Random,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: Any = None,
    keepdims: bool = False,
) -> Linear:
    if dtype is not None:
        refuse_integers(dtype)
    dims, keep = dim if axis is None else axis, keepdim or keepdims

    def apply(x: Tensor) -> Tensor:
        return torch.sum(x, dims, keep, dtype=dtype)

    return Linear((input,), affine=apply, linear=apply, squared=apply)


@rule(torch.mean, T.mean)
def mean(
    input: Random,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: Any = None,
    keepdims: bool = False,
) -> Linear:
    if dtype is not None:
        refuse_integers(dtype)
    dims, keep = dim if axis is None else axis, keepdim or keepdims
    shape = input.shape
    if not shape or dims is None:
        count = math.prod(shape)
    elif isinstance(dims, int):
        count = shape[dims]
    else:  # none of them means all
        count = math.prod([shape[d] for d in dims] or shape)

    def apply(x: Tensor) -> Tensor:
        return torch.mean(x, dims, keep, dtype=dtype)

    return Linear((input,), affine=apply, linear=apply, squared=lambda v: apply(v) / count)
