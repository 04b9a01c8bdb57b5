"""A property that is computed once for each object, without a lock.

``functools.cached_property`` of Python 3.11 and before has one lock for all objects of a class. Held while a
model runs, threads would wait for each other's models, and a fork would leave it locked in the child.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["lazy"]

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801, used as a decorator
    """Decorates a method whose value is stored in the object's ``__dict__`` under the method's name."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, owner: None, kind: Any = None) -> lazy[T]: ...

    @overload
    def __get__(self, owner: object, kind: Any = None) -> T: ...

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """The value; found in ``__dict__`` from the second time on."""
        if owner is None:
            return self
        value = vars(owner)[self._name] = self._function(owner)
        return value
