"""Random vectors that the tensors of a pass are linear in.

A tensor is ``mean + Σ_t F_tᵀ t`` over *terms* ``t``, random vectors of mean zero whose covariance with each
other is known, so that ``Cov(a, b) = Σ F_tᵀ Cov(t, u) F_u`` for any two tensors, however they came about.
Inputs are terms, and every nonlinearity adds one: what it leaves after its linear part, its residual.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["LARGEST", "Maps", "Term", "between", "check_size", "variances"]

LARGEST = 2**27  # entries of a matrix
_numbers = itertools.count()


class Term:
    """A random vector of mean zero, known by identity.

    Args:
        own: its covariance, ``(n, n)``; or variances ``(n,)`` of independent elements.
        after: the terms that it is a nonlinear function of; none for an input.
        origin: the nonlinear map that it is the residual of, for :mod:`~uaprop.covariance.residuals`.

    Attributes:
        level: how many nonlinearities it is away from the inputs.
        number: counts the terms.
        residuals: of an input the residuals that depend on it, by their number, as long as any tensor does.
    """

    __slots__ = (
        "__weakref__",
        "_cross",
        "_roots",
        "level",
        "number",
        "origin",
        "own",
        "residuals",
    )

    def __init__(self, own: Tensor, after: Iterable[Term] = (), origin: Any = None) -> None:
        terms = list(after)
        self.own = own
        self.origin = origin
        self.number: int = next(_numbers)
        self.level: int = 1 + max((term.level for term in terms), default=-1)
        self.residuals: weakref.WeakValueDictionary[int, Term] = weakref.WeakValueDictionary()
        self._cross: weakref.WeakKeyDictionary[Term, Tensor] = weakref.WeakKeyDictionary()
        self._roots = set[Term]().union(*(term.roots for term in terms))

    def __len__(self) -> int:
        return len(self.own)

    @property
    def roots(self) -> set[Term]:
        """The inputs that it depends on."""
        return self._roots or {self}

    def relate(self, other: Term, cov: Tensor) -> None:
        """Set the covariance with another term, ``(n, m)``."""
        self._cross[other] = cov

    def covariance(self, other: Term) -> Tensor | None:
        """The covariance with another term, ``(n, m)``; its own as it is; None if there is none."""
        if other is self:
            return self.own
        if other in self._cross:
            return self._cross[other]
        return other._cross[self].mT if self in other._cross else None


Maps: TypeAlias = Mapping[Term, Tensor]
"""For each term ``t`` that a tensor depends on its linear map ``F_t``, ``(len(t), *shape)``."""


def between(first: Maps, second: Maps) -> Tensor:
    """``Cov(a, b)`` of all elements of two tensors that depend on some term, ``(n, m)``."""
    total: Tensor | None = None
    for term, rows in first.items():
        image = _image(term, second)
        if image is not None:
            part = _flat(rows).mT @ image
            total = part if total is None else total + part
    if total is not None:
        return total
    rows, columns = next(iter(first.values()))[0], next(iter(second.values()))[0]
    return rows.new_zeros((rows.numel(), columns.numel()))


def variances(maps: Maps) -> Tensor:
    """Marginal variances of the elements of a tensor that depends on some term."""
    total = torch.zeros_like(next(iter(maps.values()))[0])
    for term, rows in maps.items():
        image = _image(term, maps)
        if image is not None:
            total = total + (rows * image.reshape(rows.shape)).sum(0)
    return total.clamp_min(0)


def _image(term: Term, maps: Maps) -> Tensor | None:
    """``Cov(term, a)``, ``(len(term), n)``; None if it is zero."""
    total: Tensor | None = None
    for other, rows in maps.items():
        block = term.covariance(other)
        if block is None:
            continue
        block, flat = block.to(rows), _flat(rows)
        part = block.unsqueeze(1) * flat if block.ndim == 1 else block @ flat
        total = part if total is None else total + part
    return total


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), rows.shape[1:].numel())


def check_size(rows: int, columns: int, what: str) -> None:
    """Refuse a matrix that is too large to be kept.

    Raises:
        ValueError: naming its size and what to do instead.
    """
    if rows * columns > LARGEST:
        raise ValueError(
            f"{what} would have {rows} × {columns} entries, and a dense covariance keeps matrices of "
            f'at most {LARGEST}; use method="adjoint" or method="samples", or a smaller batch'
        )
