"""Elementwise functions on accelerators, as one kernel of ``torch.compile``.

Inductor keeps its kernels on disk, so that the next process compiles in a second or so; and loads them by
itself, as processors' loops (:mod:`~uaprop.numerics.compiled`) are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .turns import warning_filters

__all__ = [
    "ACCELERATORS",
    "is_on_accelerator",
    "name_of",
    "on_accelerator",
    "tell_without_compiler",
]

ACCELERATORS = ("cuda", "xpu")
"""The kinds of device that ``torch.compile`` makes kernels for."""

Function = Callable[..., Sequence[Tensor]]
log = logging.getLogger("uaprop")

_PAYS = 2**34  # elements, about a second of work without a kernel
_kernels: dict[Function, Callable[..., Any]] = {}
_work: dict[Function, int] = {}
_tried: set[tuple[Any, ...]] = set()
_failed = False  # there is no compiler


def is_on_accelerator(tensor: Tensor) -> bool:
    """Whether a tensor is on one of them."""
    return tensor.is_cuda or tensor.is_xpu


def name_of(function: Function) -> str:
    """What a function is called when it is compiled: its file and its name."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__.strip('_')}"


def tell_without_compiler(error: Exception) -> None:
    """Whatever a compiler may miss: the answer is the same without it, and comes later."""
    reason = str(error).strip().partition("\n")[0]
    log.warning("uaprop: moments run without a compiler: %s", reason)


def on_accelerator(
    function: Function, tensors: Sequence[Tensor], mode: bool | None
) -> Sequence[Tensor] | None:
    """A function of vectors of one length, and of numbers, as one kernel.

    Args:
        function: elementwise and traceable.
        tensors: its arguments, on one device; numbers have no dimension.
        mode: as for ``ua.fused``.

    Returns:
        Its results; None if it is not to be compiled, or not yet: the first tensor's elements are noted as
        work without it.

    Raises:
        OutOfMemoryError: torch's own.
    """
    global _failed
    first = tensors[0]
    if mode is False or _failed:
        return None
    if mode is None and function not in _kernels and _work.get(function, 0) < _PAYS:
        _work[function] = _work.get(function, 0) + first.numel()
        return None
    kind = (function, first.device, first.dtype, len(tensors))
    try:
        if kind in _tried:
            return tuple(_kernel(function)(*tensors))
        with warning_filters:  # compiling sets warning filters, which all threads share
            told = "uaprop: compiling %s for %s; ua.fused(False) prevents it"
            log.warning(told, name_of(function), first.device)
            found = tuple(_kernel(function)(*tensors))
            _tried.add(kind)
            return found
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _failed = True
        tell_without_compiler(error)
        return None


def _kernel(function: Function) -> Callable[..., Any]:
    if function not in _kernels:
        _kernels[function] = torch.compile(function, dynamic=True, fullgraph=True)
    return _kernels[function]
