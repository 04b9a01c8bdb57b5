"""Operators that only an exported graph has: each is another operation under torch's internal name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..errors import UnsupportedOperation
from ..registry import rule

aten = torch.ops.aten


@rule(aten.slice)
def aten_slice(self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)]


@rule(aten.index)
def aten_index(self: Any, indices: Any) -> Any:
    return self[tuple(slice(None) if index is None else index for index in indices)]


@rule(aten.index_put, aten.index_put_)
def aten_index_put(self: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    if accumulate:
        raise UnsupportedOperation("", reason="adding up at indices has no rule")
    changed = self.clone()
    changed[tuple(slice(None) if index is None else index for index in indices)] = values
    return changed


@rule(aten.split_with_sizes, aten.unsafe_split)
def aten_split(self: Any, split_size: Any, dim: int = 0) -> Any:
    return self.split(split_size, dim)


@rule(aten.unsafe_chunk)
def aten_chunk(self: Any, chunks: int, dim: int = 0) -> Any:
    return self.chunk(chunks, dim)


@rule(aten._unsafe_view)
def aten_view(self: Any, size: Any) -> Any:
    return self.reshape(size)


@rule(aten.alias, aten.lift_fresh_copy, aten.lift_fresh, aten.lift)
def aten_alias(self: Any) -> Any:
    return self


@rule(aten._to_copy)
def aten_to(self: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    return self.to(dtype=dtype or self.dtype, device=device or self.device)


@rule(aten.sym_size)
def aten_size(self: Any, dim: int) -> int:
    size: int = self.shape[dim]
    return size


@rule(aten._assert_tensor_metadata)
def aten_metadata(a: Any, *args: Any, **kwargs: Any) -> None:
    """A check that the exported program's shapes and dtypes are those it was written for."""


@rule(aten.embedding)
def aten_embedding(weight: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    return F.embedding(indices, weight)


@rule(aten.constant_pad_nd)
def aten_pad(self: Any, pad: Any, value: float = 0) -> Any:
    return F.pad(self, pad, value=value)


def _register_pad(operator: Any, mode: str) -> None:
    @rule(operator)
    def pad(self: Any, padding: Any) -> Any:
        return F.pad(self, padding, mode=mode)

    pad.__name__ = f"aten_{operator.__name__}"


for _dims in (1, 2, 3):
    _register_pad(getattr(aten, f"reflection_pad{_dims}d"), "reflect")
    _register_pad(getattr(aten, f"replication_pad{_dims}d"), "replicate")


@rule(aten.convolution)
def aten_convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    name = f"conv{'_transpose' if transposed else ''}{weight.ndim - 2}d"
    extra = {"output_padding": output_padding} if transposed else {}
    return getattr(F, name)(
        input, weight, bias, stride, padding, dilation=dilation, groups=groups, **extra
    )


@rule(aten._softmax, exact=False)
def aten_softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    return F.softmax(self, dim, dtype=torch.float32 if half_to_float else None)


@rule(aten._log_softmax, exact=False)
def aten_log_softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    return F.log_softmax(self, dim, dtype=torch.float32 if half_to_float else None)


@rule(aten.feature_dropout)
def aten_feature_dropout(input: Any, p: float, train: bool) -> Any:
    drop = {3: F.dropout1d, 4: F.dropout2d, 5: F.dropout3d}.get(input.ndim)
    if drop is None:
        raise UnsupportedOperation("", reason=f"a tensor of {input.ndim} dimensions has no maps")
    return drop(input, p, train)


_UPSAMPLING = {
    "upsample_nearest1d": "nearest",
    "upsample_nearest2d": "nearest",
    "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "nearest-exact",
    "_upsample_nearest_exact2d": "nearest-exact",
    "_upsample_nearest_exact3d": "nearest-exact",
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "bilinear",
    "upsample_trilinear3d": "trilinear",
    "upsample_bicubic2d": "bicubic",
    "_upsample_bilinear2d_aa": "bilinear",
    "_upsample_bicubic2d_aa": "bicubic",
}


def _register_upsampling(name: str, mode: str) -> None:
    operator = getattr(aten, name)

    @rule(operator)
    def upsample(
        input: Any, output_size: Any, align_corners: Any = None, scales: Any = None, *rest: Any
    ) -> Any:
        if "nearest" in mode and align_corners is not None:  # its schema has no align_corners
            align_corners, scales = None, align_corners
        size = None if output_size is None else list(output_size)
        factors = None if size is not None else scales
        return F.interpolate(
            input, size, factors, mode, align_corners, antialias=name.endswith("_aa")
        )

    upsample.__name__ = f"aten_{name}"


for _name, _mode in _UPSAMPLING.items():
    _register_upsampling(_name, _mode)
