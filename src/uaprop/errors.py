"""The one exception of the library's own."""

from __future__ import annotations

import functools
from collections.abc import Callable

__all__ = ["UnsupportedOperation"]


class UnsupportedOperation(NotImplementedError):
    """An operation whose effect on a Gaussian the library does not know.

    Raised instead of an answer with a wrong variance. The message names the operation, where in the
    model it was called, why it has no answer if there is a reason, and what can be done.

    Attributes:
        operation: torch's name of the operation.
        module: dotted path of the innermost module that called it, or "" outside of a module.
        smooth: False for an operation whose derivative says nothing of its answer, such as a comparison:
            it cannot be linearised either.
        pure: False for an operation that writes to its arguments, or reads memory beyond them: samples
            that share memory cannot go through it together.
    """

    def __init__(
        self,
        operation: str,
        *,
        reason: str = "",
        remedy: str = "",
        module: str = "",
        smooth: bool = True,
        pure: bool = True,
    ) -> None:
        self.operation = operation
        self.reason = reason
        self.remedy = remedy
        self.module = module
        self.smooth = smooth
        self.pure = pure
        super().__init__(operation)

    def __reduce__(self) -> tuple[Callable[..., UnsupportedOperation], tuple[()]]:
        again = functools.partial(
            UnsupportedOperation,
            self.operation,
            reason=self.reason,
            remedy=self.remedy,
            module=self.module,
            smooth=self.smooth,
            pure=self.pure,
        )
        return again, ()

    def __str__(self) -> str:
        place = f" in module '{self.module}'" if self.module else ""
        reason = self.reason or "no rule says how it acts on a Gaussian"
        remedy = self.remedy or (
            "Add a rule with @ua.rule (see CONTRIBUTING.md), or use a method that needs none: "
            'method="hybrid" for whatever is differentiable, method="samples" for anything.'
        )
        return f"{self.operation}{place}: {reason}. {remedy}"
