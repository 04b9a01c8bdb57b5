"""Where in a model an operation was called: read off the call stack, so it costs nothing until asked."""

from __future__ import annotations

import sys

import torch
from torch import nn

__all__ = ["calling_module"]


def calling_module() -> str:
    """Path and type of the innermost module being called, as in ``layer1.0 (BasicBlock)``."""
    if torch.compiler.is_compiling():
        return ""  # a traced program has no stack to read
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
