"""A progress bar for work that takes long, where a terminal can show one."""

from __future__ import annotations

import sys
import time
from typing import TextIO

__all__ = ["Progress"]

_PATIENCE = 2.0  # seconds before a bar appears
_WIDTH = 30


class Progress:
    """Counts steps; draws a bar on a terminal once the work has taken a while, and removes it after.

    Args:
        total: the number of steps.
        label: what is being done.
        stream: where to draw, by default standard error.
    """

    def __init__(self, total: int, label: str, stream: TextIO | None = None) -> None:
        self.total = total
        self.label = label
        self.stream = stream if stream is not None else sys.stderr
        self.done = 0
        self.started = time.monotonic()
        self.drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def advance(self, steps: int) -> None:
        """Count ``steps`` as done and redraw if it is time to."""
        self.done += steps
        elapsed = time.monotonic() - self.started
        if elapsed < _PATIENCE or not self.stream.isatty():
            return
        filled = _WIDTH * self.done // self.total
        left = elapsed * (self.total - self.done) / self.done
        bar = "█" * filled + "░" * (_WIDTH - filled)
        self.stream.write(f"\r\x1b[K{self.label} {bar} {self.done}/{self.total}, {left:.0f} s left")
        self.stream.flush()
        self.drawn = True
