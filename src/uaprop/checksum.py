"""Checksums of tensors, for files: a number that lost a bit is a number like any other."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping

from torch import Tensor

__all__ = ["checksum"]


def checksum(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """The SHA-256 of texts and of contiguous tensors on the CPU, with their names.

    Returns:
        Hexadecimal digits.
    """
    known = hashlib.sha256()
    for text in texts:
        known.update(text.encode() + b"\0")
    for name in sorted(tensors):
        tensor = tensors[name]
        known.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            known.update((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))
    return known.hexdigest()
