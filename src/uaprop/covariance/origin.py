"""Where the elements of a result come from, after it was indexed, cut up or put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from .selection import index_of, numbered

__all__ = ["Origin"]

Table = TypeVar("Table", bound=Sized)


@dataclass(frozen=True)
class Origin:
    """For each element of a tensor its index into stored tables, which are counted through one by one.

    Attributes:
        index: integers of the tensor's shape, -1 for a constant; None if the elements are those of the
            tables, in order.
    """

    index: Tensor | None = None

    def of(self, like: Tensor) -> Tensor:
        """The indices, of the shape of a tensor that they belong to."""
        if self.index is not None:
            return self.index
        return torch.arange(like.numel(), device=like.device).view(like.shape)

    def to(self, like: Tensor) -> Origin:
        """The same beside another tensor's values."""
        return self if self.index is None else Origin(self.index.to(like.device))

    def selected(self, apply: Callable[[Tensor], Any], like: Tensor) -> Any:
        """What a rearrangement makes of it.

        Args:
            apply: the rearrangement.
            like: the tensor before, with its strides.

        Returns:
            An origin; a tuple of them if the rearrangement has several outputs.
        """
        found = apply(numbered(like))
        if isinstance(found, Tensor):
            return self._after(found, like)
        return tuple(self._after(part, like) for part in found)

    def _after(self, places: Tensor, like: Tensor) -> Origin:
        index = index_of(places)
        if self.index is None:
            return Origin() if _in_order(index, like.numel()) else Origin(index)
        before = self.index.reshape(-1)
        chosen = before[index.clamp_min(0)] if len(before) else index
        return Origin(torch.where(index < 0, -1, chosen))

    @classmethod
    def joined(
        cls,
        build: Callable[..., Tensor],
        operands: Sequence[tuple[Origin, Sequence[Table], Tensor]],
    ) -> tuple[list[Table], Origin]:
        """Of several tensors put together.

        Args:
            build: puts them together, and has zeros for what else there is.
            operands: of each tensor its origin, the tables that it refers to, and itself.

        Returns:
            The tables of all of them, each once, and the origin in these.
        """
        starts: dict[int, int] = {}
        tables: list[Table] = []
        total = 0
        for _, own, _ in operands:
            for table in own:
                if id(table) not in starts:
                    starts[id(table)] = total
                    tables.append(table)
                    total += len(table)
        numbers = []
        for origin, own, like in operands:
            index = origin.of(like)
            fresh = torch.zeros_like(index)
            begin = 0
            for table in own:
                inside = (index >= begin) & (index < begin + len(table))
                fresh = torch.where(inside, index - begin + starts[id(table)] + 1, fresh)
                begin += len(table)
            numbers.append(fresh.double())
        index = build(*numbers).long() - 1
        return tables, cls() if _in_order(index, total) else cls(index)

    def compact(self, sizes: Sequence[tuple[int, int]]) -> tuple[list[Tensor], Origin]:
        """The groups of the tables that are referred to, and the origin in tables of these alone.

        Args:
            sizes: of every table how many groups it has and how many elements each of them.

        Returns:
            For every table the groups' numbers, and the origin.
        """
        assert self.index is not None
        used, fresh = [], torch.full_like(self.index, -1)
        start = offset = 0
        for groups, size in sizes:
            local = self.index - start
            inside = (local >= 0) & (local < groups * size)
            own = local[inside] // max(1, size)
            kept, places = own.unique(return_inverse=True)
            fresh[inside] = offset + places * size + local[inside] % max(1, size)
            used.append(kept)
            start += groups * size
            offset += len(kept) * size
        return used, Origin(fresh)


def _in_order(index: Tensor, count: int) -> bool:
    """Whether these are all elements of the tables, one after the other."""
    if index.numel() != count:
        return False
    return torch.equal(index.reshape(-1), torch.arange(count, device=index.device))
