"""Checksums of every tensor that a model computes, for each item of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..numerics.imports import imported
from ..numerics.moments import HALF

__all__ = ["BatchTrace", "is_mixture"]

_ROUNDING = 2e-5  # of checksums, in units of a tensor's norm


class BatchTrace(TorchDispatchMode):
    """Takes a checksum of every tensor that a pass computes, for each item of the batch.

    Args:
        batch: the number of items.
        thorough: whether the items may be anywhere, and not only in the first dimension.
        weights: those of the checksums, kept from pass to pass.

    Attributes:
        sums: for every tensor its checksums, one or several ways to find the items in it.
        looks_at_values: whether the program reads a tensor's values, as a branch on them does.
        couples: whether it computes something from all items together, such as a maximum over the batch,
            even if that is the same for all inputs that were tried.
    """

    _READS = frozenset(
        {
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.equal,
            torch.ops.aten.is_nonzero,
            torch.ops.aten.nonzero,
        }
    )
    _SHAPES_ONLY = frozenset(
        getattr(torch.ops.aten, name)
        for name in (
            *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
            *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
        )
    )

    supports_higher_order_operators = True

    def __init__(self, batch: int, thorough: bool, weights: dict[Any, Tensor]) -> None:
        super().__init__()
        self.batch = batch
        self.thorough = thorough
        self.sums: list[list[Tensor]] = []
        self.looks_at_values = self.couples = False
        self._of_input = WeakTensorKeyDictionary()  # what was computed from the input
        self._weights = weights
        self._pausing = False
        self._exits = _Exits(self)

    def __enter__(self) -> BatchTrace:
        imported("torch._dynamo")  # torch would, in the first operation that it traces
        super().__enter__()
        self._exits.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)
        super().__exit__(*error)

    def follow(self, inputs: Sequence[Tensor]) -> None:
        """Follow what is computed from these tensors."""
        for tensor in inputs:
            self._of_input[tensor] = True

    def leaves_torch(self, tensor: Tensor) -> None:
        """Note that a tensor goes where nothing is seen: it counts as one that has no batch."""
        self.looks_at_values = True
        if tensor.layout is torch.strided:
            self._pausing = True
            self.sums.append([self._sum(tensor.detach().reshape(1, -1))])
            self._pausing = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The operator's own result."""
        result = func(*args, **(kwargs or {}))
        if self._pausing:
            return result
        if not isinstance(func, OpOverload):  # torch.cond and its like look at values
            self.looks_at_values = True
            return result
        if func.overloadpacket in self._READS:
            self.looks_at_values = True
        returns = func._schema.returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        of_input = func.overloadpacket not in self._SHAPES_ONLY and any(
            isinstance(value, Tensor) and value in self._of_input
            for value in pytree.tree_leaves((args, kwargs))
        )
        for value in pytree.tree_leaves(result):
            if not isinstance(value, Tensor):
                continue
            if of_input:
                self._of_input[value] = True
            if is_view or value.layout is not torch.strided:
                continue  # a view is nothing new
            rows = self._rows(value)
            self.couples |= of_input and value.numel() > 0 and len(rows[0]) != self.batch
            self.sums.append([self._sum(each) for each in rows])
        return result

    def _rows(self, tensor: Tensor) -> list[Tensor]:
        """The elements of each item, ``(batch, elements)``, wherever the batch may be; else all of them."""
        if tensor.numel() == 0:
            return [tensor.reshape(1, 0)]
        found = []
        for dim in range(tensor.ndim if self.thorough else min(1, tensor.ndim)):
            if tensor.shape[dim] % self.batch == 0:
                slices = tensor.movedim(dim, 0)
                found.append(slices.reshape(self.batch, -1))
                if self.thorough and len(slices) > self.batch:
                    found.append(slices.unflatten(0, (-1, self.batch)).movedim(1, 0).flatten(1))
        return found or [tensor.reshape(1, -1)]

    def _sum(self, rows: Tensor) -> Tensor:
        """A sum with random weights of each row, in units of its norm; and the norm, ``(2, rows)``."""
        if not rows.is_floating_point() or rows.dtype in HALF:
            rows = rows.real.float() if rows.is_complex() else rows.float()
        key = rows.shape[1], rows.dtype, rows.device
        if key not in self._weights:
            generator = torch.Generator("cpu").manual_seed(key[0])
            weights = torch.rand(key[0], generator=generator, device="cpu").sub_(0.5).to(rows)
            self._weights[key] = weights / weights.norm().clamp_min(1e-30)
        found = torch.stack([rows @ self._weights[key], torch.linalg.vector_norm(rows, dim=1)])
        if not math.isfinite(float(found.sum())):  # minus infinity in a mask, say
            return self._sum(rows.nan_to_num(nan=3.0, posinf=2.0, neginf=-2.0).clamp(-1e15, 1e15))
        return found


class _Exits(TorchFunctionMode):
    """Sees tensors become numpy's or Python's numbers, which is no operator of torch.

    Args:
        trace: what to tell.
    """

    _EXITS = frozenset(
        {
            Tensor.numpy,
            Tensor.tolist,
            Tensor.__array__,
            Tensor.__dlpack__,
            Tensor.data_ptr,
            Tensor.untyped_storage,
        }
    )

    def __init__(self, trace: BatchTrace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The function's own result."""
        if func in self._EXITS:
            self._trace.leaves_torch(args[0])
        return func(*args, **(kwargs or {}))


def is_mixture(own: Tensor, first: BatchTrace, second: BatchTrace, mixed: BatchTrace) -> bool:
    """Whether every tensor of a pass has the rows of one pass for some items, and of another for others."""
    traces = zip(first.sums, second.sums, mixed.sums, strict=False)
    if not len(first.sums) == len(second.sums) == len(mixed.sums):
        return False

    def fits(a: Tensor, b: Tensor, m: Tensor) -> bool:
        if not a.shape == b.shape == m.shape:
            return False
        if a.shape[1] != len(own):  # not a batch: it must not depend on the input
            return bool(_close(a, b).all() and _close(a, m).all())
        return bool(torch.where(own, _close(a, m), _close(b, m)).all())

    return all(any(map(fits, *sums)) for sums in traces)


def _close(a: Tensor, b: Tensor) -> Tensor:
    """Whether checksums are the same but for rounding, ``(rows,)``."""
    tolerance = _ROUNDING * torch.maximum(a[1], b[1])
    return ((a - b).abs() <= tolerance).all(0)
