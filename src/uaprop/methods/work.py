"""How much a model computes, from the operators that it runs: the same on any machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..numerics.imports import imported

__all__ = ["WorkCounter"]

_PER_ELEMENT = 8  # that many multiplications take as long as to write an element


class WorkCounter(TorchDispatchMode):
    """Counts floating-point operations while a model runs, as a context.

    Products and convolutions count as torch's ``FlopCounterMode`` counts them, any other operator by the
    elements of its results; but only what is computed from the tensors that are followed.

    Attributes:
        total: the operations so far.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._flops = imported("torch.utils.flop_counter").flop_registry
        self._followed = WeakTensorKeyDictionary()

    def follow(self, tensors: Sequence[Tensor]) -> None:
        """Count what is computed from these tensors."""
        for tensor in tensors:
            self._followed[tensor] = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The operator's own result."""
        result = func(*args, **(kwargs or {}))
        given = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(value, Tensor) and value in self._followed for value in given):
            return result
        found = [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
        self.follow(found)
        if not isinstance(func, OpOverload):  # torch.cond and its like, which run others
            return result
        count = self._flops.get(func.overloadpacket)
        if count is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=result))
        self.total += sum(_PER_ELEMENT * math.prod(value.shape) for value in found)
        return result
