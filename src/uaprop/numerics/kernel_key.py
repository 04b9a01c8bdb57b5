"""What a compiled kernel depends on, as a short key: another key, another file.

The key covers the function's code and all values it refers to, this package's numerics, the build of torch,
the CPU's features, the settings of the code generator, and the compiler.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["compiler", "kernel_key"]

_LENGTH = 16  # hexadecimal digits
_SETTINGS = ("TORCHINDUCTOR_CPP", "AOT_INDUCTOR", "AOTINDUCTOR", "ATEN_CPU_CAPABILITY")
_MUTABLE = (dict, list, set, Tensor)  # as globals they are caches, and fill up in time
_VERSIONED = ("torch", "builtins")  # packages whose functions are known by name and version


def kernel_key(function: Callable[..., Any]) -> str:
    """A hash of the function, and of everything but the compiler that its kernel depends on.

    Args:
        function: what is compiled.

    Returns:
        Hexadecimal digits, the same in every process on this machine.
    """
    known = hashlib.sha256(_environment())
    for part in _parts(function, set(), root=True):
        known.update(part.encode(errors="surrogatepass") + b"\0")
    return known.hexdigest()[:_LENGTH]


def compiler() -> str | None:
    """A hash of which C++ compiler would be used.

    Its path, size and date stand for its version: to ask it would start a process.

    Returns:
        Hexadecimal digits; None if there is none.
    """
    usual = "clang++" if sys.platform == "darwin" else "g++"
    found = shutil.which(os.environ.get("CXX") or usual)
    if found is None:
        return None
    status = os.stat(found)
    told = f"{os.path.realpath(found)} {status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(told.encode()).hexdigest()[: _LENGTH // 2]


def _environment() -> bytes:
    """Torch's build, the CPU, and the settings of the code generator."""
    build = f"{torch.__version__} {torch.version.git_version}"
    machine = f"{sys.platform} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    settings = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(_SETTINGS))
    return "\n".join([build, machine, _files(), *settings]).encode()


@functools.cache
def _files() -> str:
    """A hash of the formulas that a function may call, and of the CPU's features."""
    known = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        known.update(path.read_bytes())
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        lines = cpu.read_text(errors="replace").splitlines()
        flags = (line for line in lines if line.lower().startswith(("flags", "features")))
        known.update(next(flags, "").encode())
    return known.hexdigest()


def _parts(value: Any, seen: set[int], root: bool = False) -> Iterator[str]:
    """All that a value consists of: of a function its code, and what that code refers to."""
    if isinstance(value, types.CodeType):
        yield f"code {value.co_code.hex()} {value.co_names} {value.co_varnames} {value.co_freevars}"
        yield from _parts(value.co_consts, seen)
    elif isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)} {value.tolist()}"
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}"
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, dict):
        yield f"dict {len(value)}"
        for key, item in value.items():
            yield from _parts(key, seen)
            yield from _parts(item, seen)
    elif isinstance(value, frozenset | set):
        yield f"set {sorted(map(repr, value))}"
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, torch.dtype | torch.device):
        yield repr(value)
    else:
        yield from _parts_of_object(value, seen, root)


def _parts_of_object(value: Any, seen: set[int], root: bool) -> Iterator[str]:
    module = getattr(value, "__module__", None) or ""
    yield f"{type(value).__name__} {module}.{getattr(value, '__qualname__', '')}"
    package = module.partition(".")[0]
    if id(value) in seen or (package in _VERSIONED and not root):
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        yield from _parts(value.__code__, seen)
        yield from _parts((value.__defaults__, value.__kwdefaults__), seen)
        for cell in value.__closure__ or ():
            yield from _parts(cell.cell_contents, seen)
        for name in _names(value.__code__):
            used = value.__globals__.get(name)
            if not isinstance(used, _MUTABLE):
                yield from _parts(used, seen)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _parts(value.__func__, seen)
    elif not isinstance(value, type) and hasattr(value, "__wrapped__"):
        yield from _parts(value.__wrapped__, seen)


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals that a function uses, also in the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
