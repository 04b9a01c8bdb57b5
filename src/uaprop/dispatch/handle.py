"""A random value that can be written to, with torch's rules for views.

In torch ``y = x[:, 0]; y.relu_()`` changes ``x``. A Gaussian's tensors are never written to (autograd may
have saved them); the *handle* is given new ones instead. So that views behave as torch's do, a
handle made by a view keeps its parent and how it was cut from it: writing to a view writes to the parent,
and a view looks whether its parent has changed before it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kinds import Linear, Random, Select

__all__ = ["Handle"]


class _View:
    """How a handle was cut from its parent, and the parent's version at that time."""

    __slots__ = ("cut", "parent", "version")

    def __init__(self, parent: Handle, cut: Callable[[Tensor], Tensor], version: int) -> None:
        self.parent = parent
        self.cut = cut
        self.version = version


class _Monotone:
    """What a value is an increasing function of, and the tensors that this was computed from.

    A tensor that is modified in place afterwards (a weight, or what the user made the Gaussian from) would
    give another function or another operand; and if the value's own mean is, the value is no longer that
    function. Its version tells, and then the link is void.

    Args:
        operand: what the value is a function of.
        function: the function.
        tensors: what it was computed from.
        own: those of the value.
    """

    __slots__ = ("_tensors", "_versions", "function", "operand")

    def __init__(
        self,
        operand: Handle,
        function: Callable[[Any], Any],
        tensors: Sequence[Tensor],
        own: Sequence[Tensor],
    ) -> None:
        self.operand = operand
        self.function = function
        self._tensors = tensors
        # A traced program has no versions; nor have inference tensors, of which users get copies.
        traced = torch.compiler.is_compiling()
        self._versions = [
            (t, t._version) for t in (*tensors, *own) if not (traced or t.is_inference())
        ]

    def is_current(self) -> bool:
        """Whether nothing was modified in place since."""
        return all(t._version == version for t, version in self._versions)

    def tensors(self) -> Sequence[Tensor]:
        """What it was computed from."""
        return self._tensors


class Handle(Random):
    """A mean and a covariance that an in-place operation can replace.

    The value of an increasing function remembers what the function was given (``monotone_of``): a maximum
    is better taken of that.
    """

    __slots__ = ("_cov", "_loc", "_monotone", "_origin", "_provenance", "_version", "_view")

    _loc: Tensor
    _cov: Any
    _version: int
    _view: _View | None
    _origin: _View | None
    _monotone: _Monotone | None
    _provenance: Any  # which method this is the answer of

    def _hold(self, loc: Tensor, cov: Any) -> None:
        self._loc = loc
        self._cov = cov
        self._version = 0
        self._view = None
        self._origin = None
        self._monotone = None
        self._provenance = None

    @property
    def loc(self) -> Tensor:
        """The mean, as a plain tensor."""
        if self._view is not None:
            self._refresh(self._view)
        return self._loc

    @property
    def cov(self) -> Any:
        """The covariance's representation."""
        if self._view is not None:
            self._refresh(self._view)
        return self._cov

    @property
    def shape(self) -> torch.Size:
        """The shape; the same before and after."""
        return self._loc.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._loc.ndim

    @property
    def dtype(self) -> torch.dtype:
        """The mean's dtype."""
        return self._loc.dtype

    def snapshot(self) -> Handle:
        """Another handle of the same value, which no in-place operation on this one changes."""
        value = type(self).__new__(type(self))
        value._hold(self.loc, self.cov)
        value._monotone = self._monotone
        return value

    def link_monotone(
        self, operand: Handle, function: Callable[[Any], Any], constants: Sequence[Tensor]
    ) -> None:
        """Remember that this is an increasing function of ``operand``; forgotten once it is assigned to.

        Args:
            operand: a snapshot of what the function was given.
            function: the function on random tensors.
            constants: the function's other tensors.
        """
        before, own = operand._monotone, (self._loc, *self._cov.tensors())
        if before is not None and before.is_current():
            inner = before.function
            made_of = (*before.tensors(), *constants)
            self._monotone = _Monotone(before.operand, lambda x: function(inner(x)), made_of, own)
        else:
            made_of = (operand.loc, *operand.cov.tensors(), *constants)
            self._monotone = _Monotone(operand, function, made_of, own)

    @property
    def monotone_of(self) -> tuple[Random, Callable[[Random], Random]] | None:
        """What this is an increasing function of, and the function; None if that is not known."""
        if self._view is not None:
            self._refresh(self._view)
        link = self._monotone
        if link is None or not link.is_current():
            return None
        return link.operand, link.function

    def _refresh(self, view: _View) -> None:
        parent = view.parent
        if parent._view is not None:
            parent._refresh(parent._view)
        if parent._version != view.version:
            view.version = parent._version
            self._monotone = None
            self._loc, self._cov = type(parent._cov).through(Select((parent,), view.cut))
            self._version += 1
            self._provenance = None  # no longer what the method gave

    @property
    def account(self) -> Any:
        """Where this comes from, if it is the result of a method; None otherwise."""
        return self._provenance

    def keep_account(self, account: Any) -> None:
        """Remember where this comes from."""
        self._provenance = account

    def become_view(self, parent: Handle, cut: Callable[[Tensor], Tensor]) -> None:
        """Remember that this handle shares its memory with ``parent``."""
        self._view = _View(parent, cut, parent._version)

    def remember_origin(self, parent: Handle, cut: Callable[[Tensor], Tensor]) -> None:
        """Remember what this handle repeats elements of; forgotten once either is written to."""
        self._origin = _View(parent, cut, parent._version)

    @property
    def origin(self) -> tuple[Random, Callable[[Tensor], Tensor]] | None:
        """Where a tensor with repeated elements came from, and how."""
        origin = self._origin
        if origin is None or self._version > 0 or origin.parent._version != origin.version:
            return None
        return origin.parent, origin.cut

    def adopt(self, value: Handle) -> None:
        """Take on another handle's value, as an in-place operation does."""
        self.assign(value.loc, value.cov)
        self._monotone = value._monotone

    def assign(self, loc: Tensor, cov: Any) -> None:
        """Take on a new value, as an in-place operation does, and tell the parent.

        Raises:
            RuntimeError: if the value's shape is not this one's, as in torch.
        """
        if loc.shape != self.shape:
            raise RuntimeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast shape "
                f"{list(loc.shape)}"
            )
        view = self._view
        if view is not None:
            self._refresh(view)
        self._loc, self._cov, self._monotone = loc, cov, None
        self._version += 1
        self._provenance = None  # no longer what the method gave
        if view is not None:
            view.parent.assign(*_placed(view.parent, self, view.cut))
            view.version = view.parent._version


def _placed(parent: Handle, child: Handle, cut: Callable[[Tensor], Tensor]) -> Any:
    """The parent's value with the child's put back where it was cut from."""
    shape = parent.shape
    numbers = torch.arange(parent.loc.numel(), device=parent.loc.device).view(shape)
    positions = cut(numbers).reshape(-1)

    def put(whole: Tensor, part: Tensor) -> Tensor:
        return whole.reshape(-1).scatter(0, positions, part.reshape(-1)).view(shape)

    detached = child.snapshot()  # not a view of the old parent
    return type(parent._cov).through(Linear((parent, detached), put, put, put))
