"""Variances in fewer digits: where they are only summed up, bfloat16 has enough.

A variance is a sum of products that are not negative, so nothing cancels: rounding its terms to 8 bits
changes each by 0.2% at most, in either direction, and the sum by less. Convolutions and matrix products in
bfloat16 sum up in float32, and take about half the time on processors that know the format.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import threading
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["is_native", "reduced", "rounded", "variances_in"]


class _Here(threading.local):
    dtype: torch.dtype | None = None


_here = _Here()


@contextlib.contextmanager
def variances_in(dtype: torch.dtype | None) -> Iterator[None]:
    """Sum up variances of this thread in another dtype; None leaves everything as it is.

    Raises:
        ValueError: for anything but bfloat16.
    """
    if dtype not in (None, torch.bfloat16):
        raise ValueError(
            f"var_dtype must be torch.bfloat16 or None, not {dtype}; float16 would lose small variances"
        )
    before, _here.dtype = _here.dtype, dtype
    try:
        yield
    finally:
        _here.dtype = before


def reduced(var: Tensor) -> torch.dtype | None:
    """The dtype that products with this variance are to be taken in, if it is not its own."""
    return _here.dtype if var.dtype == torch.float32 else None


def is_native(device: torch.device) -> bool:
    """Whether this device multiplies in bfloat16; else that would take many times as long."""
    return device.type != "cpu" or _cpu_is_native()


@functools.cache
def _cpu_is_native() -> bool:
    known = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if platform.machine().lower() in ("x86_64", "amd64"):  # there it says so of emulation, too
        known = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if not known:
        warnings.warn(
            "this processor has no instructions for bfloat16: var_dtype=torch.bfloat16 rounds as it "
            "would elsewhere, but computes in float32 and saves no time",
            stacklevel=2,
        )
    return known


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """In the digits of another dtype, and in its own where the device does not know that."""
    if is_native(tensor.device):
        return tensor.to(dtype)
    return tensor.to(dtype).to(tensor.dtype)
