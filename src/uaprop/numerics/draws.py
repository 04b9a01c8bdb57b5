"""Which random numbers the library takes from torch's own generators, and which a model does.

A mask that a model makes of plain random numbers is the same for all that goes through it at once: the
variance is that of one mask, and nothing would tell. The library's own numbers, a mask for each sample, are
taken inside of :func:`own_draws`; whatever else has changed the generators was the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["DrawWatch", "own_draws"]


class DrawWatch:
    """Watches the generators while a model runs, as a context.

    Args:
        states: the generators' states, as values.
        same: whether two of these are the same.

    Attributes:
        foreign: whether something else than :func:`own_draws` has used a generator.
    """

    def __init__(self, states: Callable[[], Any], same: Callable[[Any, Any], bool]) -> None:
        self._states, self._same = states, same
        self._known: Any = None
        self.foreign = False

    def __enter__(self) -> DrawWatch:
        self._known = self._states()
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.reset(self._token)
        self.look()

    def look(self) -> None:
        """See whether a generator was used since."""
        if not self.foreign:
            now = self._states()
            self.foreign = not self._same(self._known, now)
            self._known = now

    def accept(self) -> None:
        """Take the generators' states as they are."""
        self._known = self._states()


_CURRENT: ContextVar[DrawWatch | None] = ContextVar("uaprop_draws", default=None)


@contextlib.contextmanager
def own_draws() -> Iterator[None]:
    """Random numbers that are the library's own, or that are made for each sample apart."""
    watch = _CURRENT.get()
    if watch is None:
        yield
        return
    watch.look()
    try:
        yield
    finally:
        watch.accept()
