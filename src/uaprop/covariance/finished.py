"""The covariance of a result: something to read and to select from, not to compute on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Bilinear, Elementwise, Joint, Linear, Noise, Select
from ..numerics.chance import RandomNumbers
from .base import Covariance, Result, per_batch_element, rearranged, square_root
from .origin import Origin

__all__ = ["Block", "Finished"]


class Block:
    """Dense covariances ``(groups, size, size)`` of groups of elements that were computed together.

    Args:
        dense: the matrices, ``(size, size)`` for a single group; or a function that gives them, which is
            called on first access, and once; None if they were too large to store.
        groups: how many groups.
        size: elements per group.
    """

    __slots__ = ("_dense", "groups", "size")

    def __init__(self, dense: Tensor | Callable[[], Tensor] | None, groups: int, size: int) -> None:
        self._dense = dense
        self.groups = groups
        self.size = size

    @property
    def dense(self) -> Tensor | None:
        """The matrices, if they were stored."""
        if self._dense is not None and not isinstance(self._dense, Tensor):
            self._dense = self._dense()
        dense = self._dense
        return dense.unsqueeze(0) if dense is not None and dense.ndim == 2 else dense

    def converted(self, convert: Callable[[Tensor], Tensor]) -> Block:
        """The same in another dtype or on another device."""
        dense = self.dense
        return Block(None if dense is None else convert(dense), self.groups, self.size)

    def compact(self, groups: Tensor) -> Block:
        """Some of the groups."""
        dense = self.dense
        return Block(None if dense is None else dense[groups], len(groups), self.size)

    def __len__(self) -> int:
        return self.groups * self.size


class Finished(Covariance):
    """Variances and, where it was small enough to store, the dense covariance of each batch element.

    The latter may be given as a function, which is called on first access, and once.

    Selections and concatenations keep what is known: two elements have the covariance that they had, if
    they belonged to one batch element. Operations are refused: how the result depends on what came before is
    gone, so correlation would be lost unnoticed.
    """

    __slots__ = ("_cached", "_root", "_var", "blocks", "origin")

    maximum_first = False  # what is refused is refused at once

    def __init__(self, var: Tensor, dense: Tensor | Callable[[], Tensor] | None = None) -> None:
        flat = per_batch_element(var)
        groups = len(flat) if flat.ndim == 2 else 1
        self._hold(var, (Block(dense, groups, flat.shape[-1]),), Origin())

    def _hold(self, var: Tensor, blocks: tuple[Block, ...], origin: Origin) -> None:
        self._var = var
        self.blocks = blocks
        self.origin = origin
        self._cached: Tensor | None = None
        self._root: Tensor | None = None

    @classmethod
    def of_blocks(cls, var: Tensor, blocks: Sequence[Block], origin: Origin) -> Finished:
        """Variances, and for each element which element of the blocks it is."""
        value = cls.__new__(cls)
        value._hold(var, tuple(blocks), origin)
        return value

    @property
    def var(self) -> Tensor:
        """Marginal variances."""
        return self._var

    @property
    def kept(self) -> Tensor | None:
        """The dense covariance of each batch element if it is known."""
        if self._cached is None and all(block.dense is not None for block in self.blocks):
            self._cached = self._gathered()
        return self._cached

    def dense(self) -> Tensor:
        """The covariance of each batch element.

        Returns:
            ``(batch, n, n)``, or ``(n, n)`` for a vector.

        Raises:
            ValueError: if it was too large to store, or elements of several batch elements were put together.
        """
        dense = self.kept
        if dense is None:
            if any(block.dense is None for block in self.blocks):
                reason = "the result is too large"
            else:
                reason = (
                    "elements of several batch elements, or of several results, were put together, and "
                    "what those have in common is not known"
                )
            raise ValueError(
                f"the dense covariance was not kept: {reason}; the marginal variances are in .var"
            )
        return dense

    def _gathered(self) -> Tensor | None:
        """The matrices in the order of the elements; None if a batch element has none of its own."""
        flat = per_batch_element(self._var)
        batch, size = (1, *flat.shape)[-2:]
        if self.origin.index is None and len({block.size for block in self.blocks}) == 1:
            parts = [block.dense for block in self.blocks]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)  # type: ignore[arg-type]
            if whole is not None and whole.shape == (batch, size, size):
                return whole if flat.ndim == 2 else whole[0]
        index = per_batch_element(self.origin.of(self._var)).reshape(batch, size)
        dense = self._var.new_zeros(batch, size, size)
        constant = index < 0
        done = constant.all(1)
        start = 0
        for block in self.blocks:
            inside = (index >= start) & (index < start + len(block))
            local = (index - start).clamp(0, max(0, len(block) - 1))
            group = torch.where(inside, local // max(1, block.size), -1)
            first = group.amax(1) if size else group.new_zeros(batch)
            own = (inside & (group == first.unsqueeze(1))) | constant
            rows = (own.all(1) & ~done).nonzero().squeeze(1)
            if len(rows):
                places = local[rows] % block.size
                known = block.dense
                assert known is not None
                part = known[
                    first[rows].reshape(-1, 1, 1), places.unsqueeze(2), places.unsqueeze(1)
                ]
                random = ~constant[rows]
                dense[rows] = part.to(dense.dtype) * (random.unsqueeze(2) & random.unsqueeze(1))
                done[rows] = True
            start += len(block)
        if not bool(done.all()):
            return None
        return dense if flat.ndim == 2 else dense[0]

    def deviations(self, count: int, noise: RandomNumbers) -> Tensor:
        """Normal samples with the dense covariance."""
        if self._root is None:
            self._root = square_root(self.dense())
        root = self._root
        normal = noise.normal(count, torch.linalg.vector_norm(root, dim=-2))
        return (root @ normal.unsqueeze(-1)).squeeze(-1).reshape(count, *self._var.shape)

    def compact(self) -> Finished:
        """The same without the groups that no element is of."""
        if self.origin.index is None:
            return self
        sizes = [(block.groups, block.size) for block in self.blocks]
        used, origin = self.origin.compact(sizes)
        blocks = [b.compact(g) for b, g in zip(self.blocks, used, strict=True) if len(g)]
        return type(self).of_blocks(self._var, blocks, origin)

    # ------------------------------------------------------------ the kinds

    @classmethod
    def select(cls, kind: Select) -> Any:
        """The same rearrangement of the marginals; what a batch element's elements have in common stays."""
        (x,) = kind.inputs
        cov: Finished = x.cov
        if kind.converts:
            blocks = tuple(block.converted(kind.apply) for block in cov.blocks)
            return rearranged(kind, lambda var: cls.of_blocks(var, blocks, cov.origin.to(var)))
        found = rearranged(kind, lambda var: var)
        origin = cov.origin.selected(kind.apply, x.loc)
        if isinstance(origin, Origin):
            mean, var = found
            return mean, cls.of_blocks(var, cov.blocks, origin)
        pairs = zip(found, origin, strict=True)
        return tuple((mean, cls.of_blocks(var, cov.blocks, part)) for (mean, var), part in pairs)

    @classmethod
    def linear(cls, kind: Linear) -> Result:
        """Results side by side, as ``torch.cat`` puts them; anything else is refused."""
        if not kind.joins:
            cls._refuse()
        mean = kind.affine(*(x.loc for x in kind.inputs))
        var = kind.squared(*(x.cov.var for x in kind.inputs))
        blocks, origin = Origin.joined(
            kind.linear, [(x.cov.origin, x.cov.blocks, x.loc) for x in kind.inputs]
        )
        return mean, cls.of_blocks(var, blocks, origin)

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise UnsupportedOperation(
            "an operation on the answer of a method",
            reason="what its elements have in common with each other and with the input is gone",
            remedy="Put the operation into the model that is propagated, or continue from independent "
            "elements with ua.Gaussian(y.mean, y.var).",
        )

    @classmethod
    def elementwise(cls, kind: Elementwise) -> NoReturn:
        """Refused."""
        cls._refuse()

    @classmethod
    def bilinear(cls, kind: Bilinear) -> NoReturn:
        """Refused."""
        cls._refuse()

    @classmethod
    def joint(cls, kind: Joint) -> NoReturn:
        """Refused."""
        cls._refuse()

    @classmethod
    def noise(cls, kind: Noise) -> NoReturn:
        """Refused."""
        cls._refuse()
