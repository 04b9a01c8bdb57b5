"""Warnings that point to the user's own line."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

from torch.nn.modules import module

__all__ = ["warn_user"]

# Ours, and what calls us on the user's behalf.
_SKIPPED = (str(Path(__file__).parent.parent), contextlib.__file__, module.__file__)


def warn_user(message: str) -> None:
    """Give a ``UserWarning`` at the innermost line that is the user's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level + 1)
