"""Maxima and minima: over dimensions, and of two tensors.

A minimum is ``-max(-x)``. Independent elements have the moments of :mod:`uaprop.numerics.largest`; for
covariances that carry correlation a maximum is composed of differences and ReLU. *Which* element is the
largest is random and has no Gaussian answer: an index can be returned, but not used.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import return_types as types

from ..errors import UnsupportedOperation
from ..kinds import Joint, Larger, Random
from ..numerics.largest import largest
from ..numerics.maximum import Marginal
from ..numerics.moments import root
from ..registry import rule
from .activation import clamp_max, clamp_min

__all__ = ["SOURCE", "Dims", "Undecided", "has_infinities", "moments_over", "with_index"]

T = torch.Tensor
_LONGEST = 64  # elements that meet one after the other
_FAR = 12.0  # standard deviations


class Undecided:
    """The index of a maximum: random, so it refuses to be used."""

    __slots__ = ()

    @classmethod
    def _refuse(cls, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedOperation(
            "an index of torch.max, torch.sort or max-pooling",
            reason="the index of a maximum is random, and not Gaussian",
            remedy="Use its values only, or decide on x.mean.max(dim).indices.",
            smooth=False,
        )

    __torch_function__ = _refuse
    __index__ = __int__ = __float__ = __bool__ = __len__ = __iter__ = __getitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _refuse
    __floordiv__ = __mod__ = __lt__ = __le__ = __gt__ = __ge__ = __array__ = _refuse
    __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    def __repr__(self) -> str:
        return "<random index: not Gaussian, not to be used>"


def with_index(kind: Any, values: Any) -> Any:
    """One of torch's own return types: the values, and in place of their indices a refusal."""
    return kind((values, Undecided()))


class Dims(NamedTuple):
    """Dimensions to reduce, brought together at the front."""

    over: list[int]
    kept: list[int]
    keepdim: bool

    def front(self, x: Any) -> Any:
        """``(elements, *kept)``."""
        sizes = [x.shape[d] for d in self.kept]
        count = math.prod([x.shape[d] for d in self.over])
        return x.permute([*self.over, *self.kept]).reshape([count, *sizes])

    def shape(self, x: Any) -> list[int]:
        """The reduced shape."""
        if not self.keepdim:
            return [x.shape[d] for d in self.kept]
        return [1 if d in self.over else x.shape[d] for d in range(x.ndim)]


def moments_over(mean: Tensor, var: Tensor, dims: Dims, sign: float) -> Marginal:
    """Of the largest (``sign`` 1) or smallest (-1) over dimensions, in working precision."""
    working = torch.promote_types(mean.dtype, torch.float32)
    rows, spreads = sign * dims.front(mean).to(working), dims.front(var).to(working)
    decided = None
    if has_infinities(rows):
        decided = rows.detach().amax(0)
        infinite = ~torch.isfinite(rows)
        rows = torch.where(infinite, _floor(rows, spreads, infinite), rows)
        spreads = torch.where(infinite, 0, spreads)
    centre, spread = largest(rows, spreads)
    if decided is not None:
        certain = ~torch.isfinite(decided)
        centre = torch.where(certain, decided, centre)
        spread = torch.where(certain, 0, spread)
    shape = dims.shape(mean)
    return (sign * centre).reshape(shape).to(mean.dtype), spread.reshape(shape).to(mean.dtype)


def has_infinities(mean: Tensor) -> bool:
    """Whether some mean is infinite or NaN, as those of masked elements are; True while it is not known."""
    if torch.compiler.is_compiling() or mean.is_meta:
        return True
    return not bool(torch.isfinite(mean).all())


def _floor(mean: Tensor, var: Tensor, infinite: Tensor) -> Tensor:
    """A number that every finite element along the first dimension is far above; zero if there is none."""
    lowest = torch.where(infinite, torch.inf, mean - _FAR * root(torch.where(infinite, 0, var)) - 1)
    least = lowest.amin(0, keepdim=True).detach()
    return torch.where(torch.isfinite(least), least, 0)


def _composed(x: Any, dims: Dims, sign: float) -> Any:
    """The same by differences and ReLU, whatever correlation the elements have.

    One after the other, the widest last: each winner, which is not Gaussian any more, then meets one that
    is, and that decides. Errors are a tenth of those of a balanced tournament.

    Returns:
        The random tensor.
    """
    shape = dims.shape(x)
    x = dims.front(x)
    x = x if sign > 0 else -x
    decided = None
    if has_infinities(x.loc):  # their differences are NaN
        decided = x.loc.detach().amax(0)
        infinite = ~torch.isfinite(x.loc)
        x = torch.where(infinite, _floor(x.loc, x.cov.var, infinite), x)
    while len(x) > 1:
        if len(x) > 2:
            x = torch.take_along_dim(x, x.cov.var.detach().argsort(0), 0)
        x = _winners(x, -(-len(x) // _LONGEST))
    best = x[0]
    if decided is not None:
        best = torch.where(torch.isfinite(decided), best, decided)
    return (best if sign > 0 else -best).reshape(shape)


def _winners(x: Any, lanes: int) -> Any:
    """One winner for each of several lanes, whose elements meet in their order."""
    rest = len(x) % lanes
    if rest:
        x = torch.cat([torch.maximum(x[:rest], x[rest : 2 * rest]), x[2 * rest :]])
    best = x[:lanes]
    for start in range(lanes, len(x), lanes):
        best = torch.maximum(best, x[start : start + lanes])
    return best


def _reduced(input: Random, dim: Any, keepdim: bool, sign: float) -> Any:
    """The largest or smallest over dimensions; over all of them if none is given."""
    given = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    operation: Any = torch.amax if sign > 0 else torch.amin
    if input.ndim == 0 or input.shape.numel() == 0:
        operation(input.loc, given, keepdim)  # torch's own error where there is nothing
        return input
    over = [d % input.ndim for d in given] or list(range(input.ndim))
    dims = Dims(over, [d for d in range(input.ndim) if d not in over], keepdim)
    return Joint(
        (input,),
        function=lambda x: operation(x, over, keepdim),
        moments=lambda mean, var: moments_over(mean, var, dims, sign),
        composed=lambda x: _composed(x, dims, sign),
    )


SOURCE = "the distribution function by quadrature; Clark (1961) for two"


@rule(torch.amax, T.amax, exact=False, source=SOURCE)
def amax(
    input: Random, dim: Any = (), keepdim: bool = False, *, axis: Any = None, keepdims: bool = False
) -> Any:
    return _reduced(input, dim if axis is None else axis, keepdim or keepdims, 1.0)


@rule(torch.amin, T.amin, exact=False, source=SOURCE)
def amin(
    input: Random, dim: Any = (), keepdim: bool = False, *, axis: Any = None, keepdims: bool = False
) -> Any:
    return _reduced(input, dim if axis is None else axis, keepdim or keepdims, -1.0)


def _of_two(input: Any, other: Any, sign: float) -> Any:
    """The larger or smaller of two tensors, at least one of them random."""
    if input is other:
        return input
    operation: Any = torch.maximum if sign > 0 else torch.minimum
    if not isinstance(input, Random) or not isinstance(other, Random):
        value: Any
        value, bound = (input, other) if isinstance(input, Random) else (other, input)
        dtype = torch.promote_types(value.loc.dtype, bound.dtype)
        if bound.ndim == 0 and bound.dtype != value.loc.dtype:
            dtype = operation(value.loc, bound).dtype
        if (
            bound.dtype != dtype or value.loc.dtype != dtype
        ):  # another operand, so another operation
            return operation(value.to(dtype), bound.to(dtype))
        return clamp_min(value, bound) if sign > 0 else clamp_max(value, bound)
    like = operation(torch.empty_like(input.loc), torch.empty_like(other.loc))
    a, b = (_as(x, like) for x in (input, other))
    if sign < 0:
        return -torch.maximum(-a, -b)
    if not torch.compiler.is_compiling() and (has_infinities(a.loc) or has_infinities(b.loc)):
        return _composed(torch.stack([a, b]), Dims([0], list(range(1, a.ndim + 1)), False), 1.0)
    return Larger((a, b))


def _as(x: Any, like: Tensor) -> Any:
    """A random tensor broadcast to a shape and a dtype."""
    x = x if x.loc.dtype == like.dtype else x.to(like.dtype)
    return x if x.shape == like.shape else x.expand(like.shape)


@rule(torch.maximum, T.maximum, source="Clark (1961)")
def maximum(input: Any, other: Any) -> Any:
    return _of_two(input, other, 1.0)


@rule(torch.minimum, T.minimum, source="Clark (1961)")
def minimum(input: Any, other: Any) -> Any:
    return _of_two(input, other, -1.0)


@rule(torch.fmax, T.fmax, source="Clark (1961)")
def fmax(input: Any, other: Any) -> Any:
    return _of_two(_without_nan(input, -1.0), _without_nan(other, -1.0), 1.0)


@rule(torch.fmin, T.fmin, source="Clark (1961)")
def fmin(input: Any, other: Any) -> Any:
    return _of_two(_without_nan(input, 1.0), _without_nan(other, 1.0), -1.0)


def _without_nan(operand: Any, side: float) -> Any:
    """A constant's NaNs lose, as a number far away on one side does."""
    if isinstance(operand, Random) or not operand.is_floating_point():
        return operand
    return torch.where(operand.isnan(), side * torch.finfo(operand.dtype).max / 4, operand)


def _extreme(input: Any, dim: Any, keepdim: bool, other: Any, sign: float) -> Any:
    """The three forms of ``torch.max``: of all elements, along a dimension, of two tensors."""
    partner = other if other is not None else dim
    if isinstance(partner, Tensor | Random):
        return _of_two(input, partner, sign)
    if dim is None:
        return _reduced(input, None, False, sign)
    if sign > 0:
        return with_index(types.max, torch.amax(input, dim, keepdim))
    return with_index(types.min, torch.amin(input, dim, keepdim))


@rule(torch.max, T.max, exact=False, source=SOURCE)
def max(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    return _extreme(input, dim, keepdim, other, 1.0)


@rule(torch.min, T.min, exact=False, source=SOURCE)
def min(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    return _extreme(input, dim, keepdim, other, -1.0)
