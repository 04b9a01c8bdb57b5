"""The table of rules: which function of torch is which kind of map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["RULES", "Rule", "all_rules", "lookup", "rule"]

RuleFunction = TypeVar("RuleFunction", bound=Callable[..., Any])


@dataclass(frozen=True)
class Rule:
    """How an operation acts on a Gaussian.

    Attributes:
        function: takes the operation's own arguments and returns a kind; or a finished answer, when the
            operation is a composition of others.
        exact: whether mean and variance are exact for independent Gaussian elements.
        source: where the formula comes from, if it is not elementary.
    """

    function: Callable[..., Any]
    exact: bool
    source: str

    @property
    def name(self) -> str:
        """The rule's name, unique in the table."""
        return self.function.__name__


RULES: dict[Callable[..., Any], Rule] = {}


def rule(
    *operations: Callable[..., Any], exact: bool = True, source: str = ""
) -> Callable[[RuleFunction], RuleFunction]:
    """Enter a rule into the table; users have :func:`uaprop.rule`, which checks it first.

    Args:
        *operations: the functions that this rule is for; in-place spellings need none.
        exact: whether its moments are exact for independent Gaussian elements.
        source: a citation, if the formula is not elementary.

    Returns:
        A decorator that registers the function and returns it unchanged.
    """

    def register(function: RuleFunction) -> RuleFunction:
        entry = Rule(function, exact, source)
        for operation in operations:
            RULES[operation] = entry
        return function

    return register


def lookup(operation: Callable[..., Any] | None) -> Rule | None:
    """The rule for an operation, or None."""
    return RULES.get(operation)  # type: ignore[arg-type]


def all_rules() -> Iterator[tuple[Callable[..., Any], Rule]]:
    """Every registered operation with its rule."""
    yield from RULES.items()
