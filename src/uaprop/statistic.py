"""A tensor that can also be called.

Of a Gaussian, ``x.mean`` is its mean; of a tensor, ``x.mean(dim=1)`` is an average, and models are full of
those. Both are served by a tensor that, when called, runs the reduction on the Gaussian it came from.
In everything else it is an ordinary tensor, and so is all that is computed from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Statistic"]


class Statistic(Tensor):
    """The mean, variance or standard deviation of a Gaussian."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    _owner: Any
    _reduction: Callable[..., Any]

    @staticmethod
    def of(tensor: Tensor, owner: Any, reduction: Callable[..., Any]) -> Statistic:
        """The tensor, able to run ``reduction`` on its owner when called."""
        if torch.compiler.is_dynamo_compiling():
            return tensor  # type: ignore[return-value]  # a compiled program cannot call a tensor
        if torch.compiler.is_compiling():  # what stands for a tensor there has no other subclass
            value: Any = tensor.view_as(tensor)
            kind: Any = type(value)
            value.__class__ = _callable(kind)
        else:
            value = tensor.as_subclass(Statistic)
        value._owner = owner
        value._reduction = reduction
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the reduction of this name on the Gaussian."""
        return type(self._owner).__torch_function__(
            self._reduction, (type(self._owner),), (self._owner, *args), kwargs
        )

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(self.as_subclass(Tensor))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Tensor:
        copy: Tensor = self.as_subclass(Tensor).__deepcopy__(memo)
        return copy


@functools.cache
def _callable(kind: type[Tensor]) -> type[Tensor]:
    """A class of tensors that can also be called, of the same layout as ``kind``."""
    return type("Statistic", (kind,), {"__call__": Statistic.__call__})
