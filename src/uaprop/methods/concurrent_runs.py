"""Runs of models in several threads, which put back together what they have changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeAlias

from .state_records import Record

__all__ = ["RUNS", "Key"]

Key: TypeAlias = tuple[int, type]  # the number of an object, and what was noted of it


class _Run:
    """A run of a model in one thread, and the notes it will put back."""

    __slots__ = ("records", "thread")

    def __init__(self, records: dict[Key, Record]) -> None:
        self.records = records
        self.thread = threading.get_ident()


class _Runs:
    """The runs of all threads.

    The first thread to run a model knows what it was like before. One that comes in meanwhile shares the
    notes of the first, because what it would see has changed already; the last to leave puts things back.
    Within a thread every run has notes of its own.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._active: list[_Run] = []

    def enter(self, take: Callable[[], dict[Key, Record]]) -> _Run:
        """Begin a run; ``take`` takes the notes, while no other thread puts anything back."""
        with self._mutex:
            run = _Run(take())
            for other in reversed(self._active):
                if other.thread != run.thread:
                    for key in run.records.keys() & other.records.keys():
                        run.records[key] = other.records[key]
            self._active.append(run)
        return run

    def leave(self, run: _Run) -> None:
        """End a run, and put back what no other thread uses."""
        with self._mutex:
            others = [other for other in self._active if other.thread != run.thread]
            for key, record in run.records.items():
                if not others or not any(key in other.records for other in others):
                    record.restore()
            self._active.remove(run)  # not before: a fork in between would leave things half done

    def after_fork(self) -> None:
        """In a child process the other threads are gone: put back what they were at."""
        self._mutex = threading.Lock()
        me = threading.get_ident()
        for run in [run for run in self._active if run.thread != me]:
            run.thread = me  # shared notes are put back with the last
            self._active.remove(run)
            for key, record in run.records.items():
                if not any(key in other.records for other in self._active):
                    record.restore()


RUNS = _Runs()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RUNS.after_fork)
