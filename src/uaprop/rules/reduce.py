"""Sums and averages over dimensions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random
from ..registry import rule

T = torch.Tensor


def _float_only(dtype: Any) -> None:
    if dtype is not None and not dtype.is_floating_point:
        raise UnsupportedOperation("", reason=f"a Gaussian cannot have the dtype {dtype}")


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
    _float_only(dtype)
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
    _float_only(dtype)
    dims, keep = dim if axis is None else axis, keepdim or keepdims
    whole = dims is None or (isinstance(dims, list | tuple) and len(dims) == 0) or input.ndim == 0
    chosen = range(input.ndim) if whole else ([dims] if isinstance(dims, int) else dims)
    count = math.prod([input.shape[d] for d in chosen])

    def apply(x: Tensor) -> Tensor:
        return torch.mean(x, dims, keep, dtype=dtype)

    return Linear((input,), affine=apply, linear=apply, squared=lambda v: apply(v) / count)
