"""Lock around what is one for the whole process.

Torch's generator, which a model's own random numbers come from, is seeded for a propagation and given back
as it was; Python's warning filters are set and reset where ``torch.vmap`` and ``torch.export`` warn. Two
threads that do so at the same time would use each other's random numbers, and leave each other's filters
behind. A model may run its layers in threads of its own, while the thread that propagates it holds the first
lock; what they need for an operation is the second.
"""

from __future__ import annotations

import os
import threading

__all__ = ["Turns", "one_at_a_time", "warning_filters"]


class Turns:
    """A lock that one thread may take several times, and that no fork leaves locked.

    A child process has one thread, the one that forked. What another thread of the parent held would never
    be released there, so the child begins with a free lock; unless that one thread holds it itself.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._depth = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def __enter__(self) -> Turns:
        self._lock.acquire()
        self._holder = threading.get_ident()
        self._depth += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
        self._lock.release()

    def _after_fork(self) -> None:
        if self._holder != threading.get_ident():
            self._lock, self._holder, self._depth = threading.RLock(), None, 0


one_at_a_time = Turns()
"""Held while a model is propagated. Who takes both takes this one first."""

warning_filters = Turns()
"""Held while warning filters are set, for a moment."""
