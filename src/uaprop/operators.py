"""The operators of a tensor, each spelled as the function of torch that it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Operators"]


class Operators:
    """Indexing and arithmetic, for a class that can run a function of torch."""

    __slots__ = ()

    def _run(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        return self._run(torch.Tensor.__getitem__, self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._run(torch.Tensor.__setitem__, self, index, value)

    def __neg__(self) -> Any:
        return self._run(torch.neg, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self._run(torch.abs, self)

    def __add__(self, other: Any) -> Any:
        return self._run(torch.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self._run(torch.add, other, self)

    def __iadd__(self, other: Any) -> Any:
        return self._run(torch.Tensor.add_, self, other)

    def __sub__(self, other: Any) -> Any:
        return self._run(torch.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._run(torch.sub, other, self)

    def __isub__(self, other: Any) -> Any:
        return self._run(torch.Tensor.sub_, self, other)

    def __mul__(self, other: Any) -> Any:
        return self._run(torch.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._run(torch.mul, other, self)

    def __imul__(self, other: Any) -> Any:
        return self._run(torch.Tensor.mul_, self, other)

    def __truediv__(self, other: Any) -> Any:
        return self._run(torch.div, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._run(torch.div, other, self)

    def __itruediv__(self, other: Any) -> Any:
        return self._run(torch.Tensor.div_, self, other)

    def __floordiv__(self, other: Any) -> Any:
        return self._run(torch.floor_divide, self, other)

    def __mod__(self, other: Any) -> Any:
        return self._run(torch.remainder, self, other)

    def __pow__(self, exponent: Any) -> Any:
        return self._run(torch.pow, self, exponent)

    def __ipow__(self, exponent: Any) -> Any:
        return self._run(torch.Tensor.pow_, self, exponent)

    def __rpow__(self, base: Any) -> Any:
        return self._run(torch.pow, base, self)

    def __matmul__(self, other: Any) -> Any:
        return self._run(torch.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self._run(torch.matmul, other, self)

    __hash__ = object.__hash__

    def __eq__(self, other: Any) -> Any:
        return self._run(torch.eq, self, other)

    def __ne__(self, other: Any) -> Any:
        return self._run(torch.ne, self, other)

    def __lt__(self, other: Any) -> Any:
        return self._run(torch.lt, self, other)

    def __le__(self, other: Any) -> Any:
        return self._run(torch.le, self, other)

    def __gt__(self, other: Any) -> Any:
        return self._run(torch.gt, self, other)

    def __ge__(self, other: Any) -> Any:
        return self._run(torch.ge, self, other)
