"""Elementwise functions compiled to one loop over memory, once for each machine.

A dozen operations of torch read and write memory a dozen times; TorchInductor makes one loop of them,
vectorised and on all threads. ``torch.compile`` would take seconds of every process to find its own cache.
So the loop is compiled ahead of time (AOTInductor) to a shared library under ``~/.cache/uaprop`` (the
environment variable ``UAPROP_CACHE`` names another folder), which the next process loads in milliseconds
(:mod:`~uaprop.numerics.kernel_cache`). Whatever fails on the way, results come from the formula instead.

To compile takes about ten seconds. It begins by itself once a function has had enough work in this process
for that to pay, and says so; ``ua.fused(True)`` does not wait, ``ua.fused(False)`` never compiles nor uses
what is compiled.
"""

from __future__ import annotations

import glob
import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import kernel_cache
from .accelerated import is_on_accelerator, name_of, on_accelerator, tell_without_compiler
from .imports import imported
from .kernel_key import compiler, kernel_key
from .turns import warning_filters

__all__ = ["COMPILED", "Program", "fused", "looped", "program"]

Function = Callable[..., Sequence[Tensor]]
Program = Callable[[list[Tensor]], list[Tensor]]
_Key = tuple[Function, torch.dtype, str]
log = logging.getLogger("uaprop")

COMPILED = (torch.float32, torch.float64)
"""The dtypes that loops are compiled for."""

_PAYS = 2**28  # elements, some seconds of work without it
_loaded: dict[_Key, Program] = {}
_work: dict[_Key, int] = {}
_failed = False  # there is no compiler, or no place for what it makes
_building = False
_orphaned = False  # forked from a process while it compiled


class fused:  # noqa: N801, used like a function, as torch.no_grad is
    """Whether the moments of nonlinearities run as compiled kernels; also a context manager.

    By default they do where the kernel is in the cache already, or there has been enough work for compiling
    to pay. The results agree within rounding. The switch holds for all threads. On a GPU (CUDA, XPU) the
    kernels are those of ``torch.compile``.

    Args:
        mode: ``True`` compiles at the first call; ``False`` never compiles, and uses nothing compiled;
            ``None`` is the default.
    """

    mode: bool | None = None

    def __init__(self, mode: bool | None = True) -> None:
        self._before = fused.mode
        fused.mode = mode

    def __enter__(self) -> fused:
        return self

    def __exit__(self, *error: object) -> None:
        fused.mode = self._before


def program(function: Function, dtype: torch.dtype, takes: str) -> Program | None:
    """The compiled loop of a function, elementwise in a length that all its tensors share.

    Args:
        function: from tensors to tensors.
        dtype: of all of them.
        takes: what it takes, a letter for each argument: ``v`` a vector of that length, ``s`` a stack of
            vectors ``(rows, length)``, ``d`` one of double vectors ``(rows, 2 · length)``, ``r`` a number for
            each row ``(rows, 1)``, ``i`` a whole one ``(rows,)``, ``n`` a number.

    Returns:
        From a list of contiguous tensors to a list of tensors; None if there is none yet, or it is not to
        be used.
    """
    mode = fused.mode
    if mode is False:
        return None
    found = _loaded.get((function, dtype, takes))
    if found is not None or _orphaned:
        return found
    return _find(function, dtype, takes, mode is True)


def looped(function: Function, takes: str, tensors: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """The function's :func:`program` on contiguous tensors, or its kernel on an accelerator.

    Returns:
        Its results; None if there is none, and the first tensor's elements are noted as work without it.
    """
    first = tensors[0]
    if is_on_accelerator(first):
        return on_accelerator(function, tensors, fused.mode)
    run = program(function, first.dtype, takes)
    if run is not None:
        return run(list(tensors))
    if fused.mode is not False:  # what is counted was looked for in the cache
        key = (function, first.dtype, takes)
        _work[key] = _work.get(key, 0) + first.numel()
    return None


def _find(function: Function, dtype: torch.dtype, takes: str, at_once: bool) -> Program | None:
    """From the cache; or compiled, if asked to or once that pays."""
    global _failed
    key = (function, dtype, takes)
    work = _work.get(key)
    if work is not None and (_failed or not (at_once or work >= _PAYS)):
        return None  # the cache was searched before, when there was no work yet
    name = f"{name_of(function)}-{str(dtype)[6:]}-{takes}"
    with warning_filters:  # compiling sets warning filters, which all threads share
        if key in _loaded:
            return _loaded[key]
        run = None
        try:
            path = _path(name, function)
            run = _load(path)
            if run is None and not _failed and (at_once or (work or 0) >= _PAYS):
                run = _compiled(name, function, dtype, takes, path)
        except kernel_cache.RefusedFolderError as error:
            if not _failed:
                log.warning("uaprop: compiled kernels are not used: %s", error)
            _failed = True
        except Exception as error:
            _failed = True
            tell_without_compiler(error)
        if run is not None:
            _loaded[key] = run
        return run


def _path(name: str, function: Function) -> Path | None:
    """The kernel's file; None if there is no folder for it."""
    folder = kernel_cache.folder()
    if folder is None:
        return None
    start, used = f"{name}-{kernel_key(function)}-", compiler()
    if used is None:  # any compiler's will do, as in an image that was built with one
        found = sorted(folder.glob(f"{glob.escape(start)}*.so"))
        return found[0] if found else folder / f"{start}none.so"
    return folder / f"{start}{used}.so"


def _load(path: Path | None) -> Program | None:
    """The kernel in a file; None if there is none, or the file must not or cannot be loaded."""
    if path is None:
        return None
    try:
        kernel_cache.verify(path)
        run: Program = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1).run
    except FileNotFoundError:
        return None
    except (kernel_cache.RefusedError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        log.warning("uaprop: the compiled kernel %s is not used: %s", path, reason)
        kernel_cache.discard(path)
        return None
    return run


def _compiled(
    name: str, function: Function, dtype: torch.dtype, takes: str, path: Path | None
) -> Program:
    """The kernel, compiled into its file and loaded from there."""
    global _building
    if path is None:
        raise OSError("there is no home folder to keep kernels in; UAPROP_CACHE can name another")
    kernel_cache.create(path.parent)
    _building = True
    try:
        _aside(_build, name, function, dtype, takes, path)
    finally:
        _building = False
    run = _load(path)
    if run is None:
        raise OSError(f"{path} cannot be loaded")
    return run


def _after_fork() -> None:
    """In a child process the thread that compiled is gone, and what it had locked remains locked."""
    global _building, _orphaned
    _building, _orphaned = False, _orphaned or _building


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _aside(function: Callable[..., None], *arguments: Any) -> None:
    """Run in a thread of its own: inside an operator's kernel, as this one may be, nothing can be traced."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(function, *arguments).result()


class _Loop(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.function(*arguments))


def _build(name: str, function: Function, dtype: torch.dtype, takes: str, path: Path) -> None:
    log.warning("uaprop: compiling %s, once for this machine; ua.fused(False) prevents it", name)
    started = time.perf_counter()
    rows, length = torch.export.Dim("rows", min=2), torch.export.Dim("length", min=2)
    examples, shapes = [], []
    for kind in takes:
        shape, dynamic = {
            "v": ((1024,), {0: length}),
            "s": ((8, 1024), {0: rows, 1: length}),
            "d": ((8, 2048), {0: rows, 1: 2 * length}),
            "r": ((8, 1), {0: rows}),
            "i": ((8,), {0: rows}),
            "n": ((), None),
        }[kind]
        examples.append(
            torch.zeros(shape, dtype=torch.long if kind == "i" else dtype, device="cpu")
        )
        shapes.append(dynamic)
    with (
        kernel_cache.workspace(path.parent) as folder,
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch's, about its own parts
        inductor: Any = imported("torch._inductor")  # takes seconds to import, so only here

        exported = torch.export.export(
            _Loop(function), tuple(examples), dynamic_shapes=(tuple(shapes),), strict=False
        )
        options = {
            "aot_inductor.package": False,
            "aot_inductor.output_path": str(folder / "loop.so"),
            "cpp.dynamic_threads": True,  # as many as torch uses when it runs
        }
        built: Any = inductor.aot_compile(exported.module(), tuple(examples), options=options)
        kernel_cache.store(Path(built), path)
    log.warning("uaprop: compiled %s in %.0f s", name, time.perf_counter() - started)
