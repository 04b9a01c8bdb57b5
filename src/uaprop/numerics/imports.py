"""Imports of a program that runs already: a fork waits for them.

Python locks a module while it imports it. A child process has only the thread that forked, so the lock of a
module that another thread was importing is never released there, and the child waits for it for ever.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from types import ModuleType

__all__ = ["imported"]

_LONGEST = 60.0  # seconds that a fork waits: rather a child that may be stuck than a parent that is


class _Imports:
    """A lock that a fork takes, too, and releases in both processes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._taken = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork,
                after_in_child=self._after_fork_in_child,
            )

    def __call__(self, name: str, package: str | None = None) -> ModuleType:
        with self._lock:
            return import_module(name, package)

    def _before_fork(self) -> None:
        self._taken = self._lock.acquire(timeout=_LONGEST)

    def _after_fork(self) -> None:
        if self._taken:
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        if not self._taken:
            self._lock = threading.RLock()
        else:
            self._lock.release()


imported = _Imports()
"""As ``importlib.import_module``, for what is imported when it is first needed."""
