"""What a run of a model is to do about operations without a rule, and who wants to know of each one.

Outside of a :class:`Watch` an operation without a rule is refused, and nobody takes notes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ..errors import UnsupportedOperation
from ..registry import Rule
from .spellings import Operation

__all__ = ["Event", "Watch", "current", "refused"]

AnyError = TypeVar("AnyError", bound=Exception)


@dataclass(frozen=True)
class Event:
    """One operation on random operands, as the dispatcher answered it.

    Attributes:
        operation: torch's function.
        place: path and type of the calling module, or "".
        rule: its rule, or None.
        kind: the kind that the rule answered with; None for a rule that is composed of other operations,
            for a plain answer and for a refusal.
        parts: the operations that a composed rule called.
        identity: whether the answer is one of the arguments, unchanged.
        refusal: why there is no answer; None if there is one.
    """

    operation: Operation
    place: str
    rule: Rule | None
    kind: Any = None
    parts: tuple[Event, ...] = ()
    identity: bool = False
    refusal: UnsupportedOperation | None = None


@dataclass
class Watch:
    """A run of a model, as a context.

    Attributes:
        linearise: whether operations without a rule are replaced by their derivative at the mean.
        stand_in: answers an operation that has no rule, so that the run can go on; None to refuse.
        record: whether to keep an :class:`Event` for every operation.
        linearised: the operations that were linearised, with their place, each once.
        refusals: the exceptions that the run was to end with. A model may catch them and go on by another
            branch, which its plain tensors would not take.
        events: the operations of the run, in order.
    """

    linearise: bool = False
    stand_in: Callable[..., Any] | None = None
    record: bool = False
    linearised: dict[str, None] = field(default_factory=dict)
    refusals: list[Exception] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _token: Token[Watch | None] | None = field(default=None, repr=False)

    def __enter__(self) -> Watch:
        global _watches
        _watches += 1
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        global _watches
        assert self._token is not None
        _watches -= 1
        _CURRENT.reset(self._token)

    def check(self) -> None:
        """Raise what the model has caught.

        Raises:
            UnsupportedOperation: the first refusal, with what has become of it.
        """
        if not self.refusals:
            return
        first = self.refusals[0]
        if not isinstance(first, UnsupportedOperation):
            first = UnsupportedOperation("the model", reason=str(first))
        note = "; the model has caught this error and gone on by another branch"
        raise UnsupportedOperation(
            first.operation,
            reason=(first.reason or "no rule says how it acts on a Gaussian") + note,
            remedy=first.remedy,
            module=first.module,
        ) from self.refusals[0]

    def since(self, mark: int) -> tuple[Event, ...]:
        """Take the events from number ``mark`` on out of the notes: they are parts of another."""
        parts = tuple(self.events[mark:])
        del self.events[mark:]
        return parts


def refused(error: AnyError) -> AnyError:
    """Take note of an exception that is about to be raised in the model, and give it back."""
    watch = current()
    if watch is not None:
        watch.refusals.append(error)
    return error


_CURRENT: ContextVar[Watch | None] = ContextVar("uaprop_watch", default=None)
_watches = 0  # in all threads: as long as there are none, no thread has to ask for its own


def current() -> Watch | None:
    """The watch of the run that is going on; none while torch.compile traces a program."""
    return None if _watches == 0 or torch.compiler.is_compiling() else _CURRENT.get()
