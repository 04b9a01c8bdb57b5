"""Where in a model an operation was called: read off the call stack, so it costs nothing until asked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import nn

__all__ = ["calling_module", "standing_in"]

_STANDING_IN: ContextVar[str] = ContextVar("uaprop_place", default="")


@contextlib.contextmanager
def standing_in(path: str, kind: str) -> Iterator[None]:
    """Run something in the name of a module that is not on the call stack."""
    token = _STANDING_IN.set(f"{path} ({kind})" if path else kind)
    try:
        yield
    finally:
        _STANDING_IN.reset(token)


def calling_module() -> str:
    """Path and type of the innermost module being called, as in ``layer1.0 (BasicBlock)``."""
    if torch.compiler.is_dynamo_compiling():
        return ""  # it has no stack to read
    if place := _STANDING_IN.get():
        return place
    frame = sys._getframe(1)
    modules: list[nn.Module] = []
    while frame is not None:
        if frame.f_code.co_name in ("_call_impl", "forward"):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and not (modules and modules[-1] is owner):
                modules.append(owner)
        frame = frame.f_back  # type: ignore[assignment]
    if not modules:
        return ""
    innermost, outermost = modules[0], modules[-1]
    kind = type(innermost).__name__
    for name, module in outermost.named_modules():
        if module is innermost:
            return f"{name} ({kind})" if name else kind
    return kind
