"""Padding and interpolation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kinds import Linear, Random, Select
from ..registry import rule
from .average import adaptive_average


@rule(F.pad)
def pad(input: Random, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    if mode != "constant":  # reflect, replicate and circular repeat elements
        return Select((input,), lambda t: F.pad(t, pad, mode), repeats=True)
    return Linear(
        (input,),
        affine=lambda x: F.pad(x, pad, "constant", value),
        linear=lambda x: F.pad(x, pad),
        squared=lambda v: F.pad(v, pad),
    )


@rule(F.interpolate, F.upsample)
def interpolate(
    input: Random,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    def resize(x: Tensor) -> Tensor:
        return F.interpolate(
            x, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        )

    if mode.startswith("nearest"):
        return Select((input,), resize)
    dims = input.ndim - 2
    outs = resize(torch.empty((1, 1, *input.shape[2:]), device="meta")).shape[2:]
    if mode == "area":
        return adaptive_average(input, tuple(outs), dims)

    def weights(dim: int, like: Tensor) -> Tensor:
        """The interpolation along one dimension as a matrix: what it makes of unit vectors."""
        length = input.shape[2 + dim]
        # The other dimensions keep two elements, not one: torch's antialiasing goes wrong on one.
        eye = torch.eye(length, dtype=like.dtype, device=like.device)
        shape = [length if i == dim else 1 for i in range(dims)]
        wide = [length if i == dim else 2 for i in range(dims)]
        factors: Any = None
        if scale_factor is not None:
            given = (
                scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * dims
            )
            factors = [given[i] if i == dim else 1.0 for i in range(dims)]
        sizes: Any = None
        if size is not None:
            sizes = [outs[i] if i == dim else 2 for i in range(dims)]
        columns = F.interpolate(
            eye.view(1, length, *shape).expand(1, length, *wide),
            sizes,
            factors,
            mode,
            align_corners,
            recompute_scale_factor,
            antialias,
        )
        corner = [slice(None) if i == dim else 0 for i in range(dims)]
        return columns[(0, slice(None), *corner)]

    def squared(v: Tensor) -> Tensor:
        for dim in range(dims):
            coefficients = weights(dim, v).square()
            v = (v.movedim(2 + dim, -1) @ coefficients).movedim(-1, 2 + dim)
        return v

    return Linear((input,), affine=resize, linear=resize, squared=squared)
