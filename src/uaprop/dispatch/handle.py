"""A random value that can be written to, with torch's rules for views.

In torch ``y = x[:, 0]; y.relu_()`` changes ``x``. A Gaussian's tensors are never written to (autograd may
have saved them); the *handle* is given new ones instead. So that views behave as torch's do, a
handle made by a view keeps its parent and how it was cut from it: writing to a view writes to the parent,
and a view looks whether its parent has changed before it answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..kinds import Elementwise, Linear, Random, Select
from ..numerics.autocast import is_autocast, outside_autocast
from ..numerics.layout import insist_on_usual

__all__ = ["Handle"]


_Held = tuple[Tensor, Any, "_Later | None"]


class _View:
    """How a handle was cut from its parent, and the parent's version at that time."""

    __slots__ = ("cut", "parent", "version")

    def __init__(self, parent: Handle, cut: Callable[[Tensor], Tensor], version: int) -> None:
        self.parent = parent
        self.cut = cut
        self.version = version


class _Later:
    """The value of an increasing function, still to be computed; once, whoever asks for it.

    Attributes:
        function: the function on random tensors, from what ``Handle.raised`` gives.
    """

    __slots__ = ("_gradients", "_held", "_kind", "_result", "function")

    def __init__(
        self, kind: Elementwise | Linear, held: _Held, function: Callable[[Any], Any]
    ) -> None:
        self._kind = kind
        self._held = held  # by the operand, which may be written to meanwhile
        self._gradients = torch.is_grad_enabled()
        self._result: Any = None
        self.function = function

    def result(self) -> Any:
        """Mean and covariance, with gradients if they were wanted when the function was called."""
        if self._result is None:
            if torch.is_grad_enabled() is not self._gradients or is_autocast():
                with torch.set_grad_enabled(self._gradients), outside_autocast():
                    return self.result()
            kind: Any = self._kind
            (x,) = kind.inputs
            loc, cov, later = x.held()
            if not (loc is self._held[0] and cov is self._held[1] and later is self._held[2]):
                kind = replace(kind, inputs=(x.holding(*self._held),))
            self._result = type(self._held[1]).through(kind)
        return self._result


class Handle(Random):
    """A mean and a covariance that an in-place operation can replace.

    The value of an increasing function may be computed *later*, when somebody asks for it: a maximum asks
    for what the function was given instead (``raised``). Until then the handle holds that.
    """

    __slots__ = ("_cov", "_later", "_loc", "_origin", "_provenance", "_version", "_view")

    _loc: Tensor
    _cov: Any
    _version: int
    _view: _View | None
    _origin: _View | None
    _later: _Later | None
    _provenance: Any  # which method this is the answer of

    def _hold(self, loc: Tensor, cov: Any, later: _Later | None = None) -> None:
        self._loc = loc
        self._cov = cov
        self._version = 0
        self._view = None
        self._origin = None
        self._later = later
        self._provenance = None

    @property
    def loc(self) -> Tensor:
        """The mean, as a plain tensor."""
        if self._later is not None:
            self._settle(self._later)
        if self._view is not None:
            self._refresh(self._view)
        return self._loc

    @property
    def cov(self) -> Any:
        """The covariance's representation."""
        if self._later is not None:
            self._settle(self._later)
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

    def held(self) -> _Held:
        """What this holds at present: other objects as soon as it is written to."""
        if self._view is not None:
            self._refresh(self._view)
        return self._loc, self._cov, self._later

    def holding(self, loc: Tensor, cov: Any, later: _Later | None = None) -> Handle:
        """Another handle of the same type, which nothing that is written to this one changes."""
        value = type(self).__new__(type(self))
        value._hold(loc, cov, later)
        return value

    def defer(self, kind: Elementwise | Linear, function: Callable[[Any], Any]) -> Handle:
        """The value of an increasing function of this, computed when asked for.

        Args:
            kind: the function as a kind, of this handle.
            function: the function itself, on random tensors.

        Returns:
            A handle that is what the function is given, until then.
        """
        if self._view is not None:
            self._refresh(self._view)
        loc, cov, before = self._loc, self._cov, self._later
        whole = function
        if before is not None:
            whole = lambda value: function(before.function(value))  # noqa: E731
        return self.holding(loc, cov, _Later(kind, (loc, cov, before), whole))

    @property
    def raised(self) -> tuple[Random, Callable[[Random], Random]] | None:
        """What this is an increasing function of, as long as it is not computed, and the function."""
        if self._later is None:
            return None
        loc, cov, _ = self.held()
        return self.holding(loc, cov), self._later.function

    def _settle(self, later: _Later) -> None:
        self._loc, self._cov = later.result()
        self._later = None

    def become(self, other: Handle) -> bool:
        """Become what another handle is, later, if that is still open and this is no view.

        Returns:
            Whether it did.
        """
        if other._later is None or self._view is not None:
            return False
        self._loc, self._cov, self._later = other._loc, other._cov, other._later
        self._version += 1
        return True

    def _refresh(self, view: _View) -> None:
        parent = view.parent
        if parent._view is not None:
            parent._refresh(parent._view)
        if parent._version != view.version:
            insist_on_usual()
            view.version = parent._version
            self._loc, self._cov = type(parent._cov).through(Select((parent,), view.cut))
            self._version += 1

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
            insist_on_usual()
            self._refresh(view)
        self._loc, self._cov, self._later = loc, cov, None
        self._version += 1
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

    detached = child.holding(child._loc, child._cov)  # not a view of the old parent
    return type(parent._cov).through(Linear((parent, detached), put, put, put))
