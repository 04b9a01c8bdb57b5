"""Spreads and norms over dimensions, and directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Joint, Random, plain
from ..numerics import rectified
from ..numerics.largest_size import largest_size, smallest_size
from ..numerics.normalised import independent, root_mean_square
from ..registry import rule
from .normalise import SOURCE, Groups, normalise
from .positive import check_nonzero
from .ratio import positive_power

T = torch.Tensor
_SQUARES = (
    "a sum of squares as gamma distributed, Satterthwaite (1946); an integral over exponential tilts "
    "where it varies much"
)
Pair = tuple[Tensor, Tensor]


def _rows(input: Random, dim: Any, keepdim: bool = False) -> tuple[Groups, Callable[[Any], Any]]:
    """The elements along some dimensions as rows, and what has one value for each row in its place."""
    ndim = input.ndim
    whole = dim is None or (isinstance(dim, list | tuple) and len(dim) == 0)
    dims = range(ndim) if whole else [dim] if isinstance(dim, int) else dim
    reduced = [d % max(ndim, 1) for d in dims] if ndim else []
    kept = [d for d in range(ndim) if d not in reduced]
    order = [*kept, *reduced]
    shape = [input.shape[d] for d in order]
    places = [order.index(d) for d in range(ndim)]
    count = math.prod([input.shape[d] for d in reduced])
    rest = shape[: len(kept)]
    final = [1 if d in reduced else input.shape[d] for d in range(ndim)] if keepdim else rest
    groups = Groups(
        lambda x: x.permute(order).reshape([*rest, count]),
        lambda x: x.reshape(shape).permute(places),
        count,
    )
    return groups, lambda x: x.reshape(final)


def _reduction(
    input: Random,
    function: Callable[[Tensor], Tensor],
    moments: Callable[[Tensor, Tensor], Pair],
    composed: Callable[[Any], Any],
    dim: Any,
    keepdim: bool,
) -> Joint:
    """A number for each row, by moments of rows ``(…, elements)`` and by operations on them.

    Returns:
        The joint kind, with torch's own value where nothing is random.
    """
    groups, place = _rows(input, dim, keepdim)

    def marginals(mean: Tensor, var: Tensor) -> Pair:
        working = torch.promote_types(mean.dtype, torch.float32)
        rows, spreads = (groups.split(t.to(working)) for t in (mean, var))
        first, second = moments(rows, spreads)
        plain = function(mean)
        certain = place((spreads == 0).all(-1))
        first = torch.where(certain, plain, place(first).to(plain.dtype))
        return first, torch.where(certain, 0, place(second)).to(plain.dtype)

    return Joint((input,), function, marginals, lambda x: place(composed(groups.split(x))))


# ------------------------------------------------------------------ variance over dimensions


def _dim_and_correction(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, Any]:
    """What torch's two forms mean: ``var(dim, correction=1)`` and the older ``var(unbiased)``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    return dim, 1 if correction is None else correction


def _spread(
    operation: Callable[..., Any], input: Random, dim: Any, taken: Any, keepdim: bool, power: float
) -> Joint:
    count = _rows(input, dim)[0].count
    if count <= taken:  # torch divides by zero, and warns
        raise UnsupportedOperation(
            "",
            reason=f"{count} element(s) with correction={taken} leave no degrees of freedom",
            remedy="Use correction=0, or more elements.",
        )

    def function(x: Tensor) -> Tensor:
        value: Tensor = operation(x, dim, correction=taken, keepdim=keepdim)
        return value

    def moments(mean: Tensor, var: Tensor) -> Pair:
        scale = mean.shape[-1] / (mean.shape[-1] - taken)
        if power == 1:
            parts = independent(mean, var, 0.0, True)
            return scale * parts.total.squeeze(-1), scale**2 * parts.spread.squeeze(-1)
        first, second = root_mean_square(mean, var, True)
        return scale**0.5 * first, scale * second

    def composed(rows: Any) -> Any:
        centred = rows - torch.mean(rows, -1, True)
        total = torch.sum(torch.square(centred), -1) / (rows.shape[-1] - taken)
        return total if power == 1 else positive_power(total, power)

    return _reduction(input, function, moments, composed, dim, keepdim)


def _register_spread(
    operation: Callable[..., Any], method: Callable[..., Any], power: float, source: str
) -> None:
    @rule(operation, method, exact=power == 1, source=source)
    def spread(
        input: Random,
        dim: Any = None,
        unbiased: Any = None,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> Joint:
        dim, taken = _dim_and_correction(dim, unbiased, correction)
        return _spread(operation, input, dim, taken, keepdim, power)

    spread.__name__ = operation.__name__


_register_spread(torch.var, T.var, 1, "Isserlis (1918)")
_register_spread(torch.std, T.std, 0.5, _SQUARES)


def _register_with_mean(operation: Callable[..., Any], spread: Callable[..., Any]) -> None:
    @rule(operation, exact=False, source=_SQUARES)
    def with_mean(
        input: Any,
        dim: Any = None,
        unbiased: Any = None,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> Any:
        dim, taken = _dim_and_correction(dim, unbiased, correction)
        value = spread(input, dim, correction=taken, keepdim=keepdim)
        dims = list(range(input.ndim)) if dim is None else dim
        return value, torch.mean(input, dims, keepdim)

    with_mean.__name__ = operation.__name__


_register_with_mean(torch.var_mean, torch.var)
_register_with_mean(torch.std_mean, torch.std)


# ------------------------------------------------------------------ norms


def _unit(x: Any) -> Tensor:
    """About the largest element, a constant: high powers of anything else leave the range of a dtype."""
    if x.numel() == 0:
        return torch.ones_like(plain(x).sum())
    with torch.no_grad():
        largest = plain(x).abs().amax()
        return torch.where((largest > 0) & largest.isfinite(), largest, 1)


@rule(torch.linalg.vector_norm, exact=False, source=_SQUARES)
def vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    x = x if dtype is None else x.to(dtype)
    if math.isinf(ord):
        return _extreme_norm(x, ord, dim, keepdim)
    if ord in range(4, 33, 2):  # far from gamma distributed if it is noisy, and then refused
        unit = _unit(x)
        return torch.sum((x / unit) ** ord, dim, keepdim) ** (1 / ord) * unit
    if ord not in (1, 2):
        raise UnsupportedOperation(
            "",
            reason=f"the norm of order {ord} has no moments in closed form",
            remedy="Orders 1, 2, 4, 6, … and infinity have a rule.",
        )

    def moments(mean: Tensor, var: Tensor) -> Pair:
        if ord == 1 or mean.shape[-1] == 1:
            result = rectified.absolute(mean, var)
            return result.mean.sum(-1), result.var.sum(-1)
        first, second = root_mean_square(mean, var, False)
        return mean.shape[-1] ** 0.5 * first, mean.shape[-1] * second

    def composed(rows: Any) -> Any:
        if ord == 1 or rows.shape[-1] == 1:
            return torch.sum(torch.abs(rows), -1)
        return positive_power(torch.sum(torch.square(rows), -1), 0.5)

    def function(t: Tensor) -> Tensor:
        return torch.linalg.vector_norm(t, ord, dim, keepdim)

    return _reduction(x, function, moments, composed, dim, keepdim)


def _extreme_norm(x: Any, ord: float, dim: Any, keepdim: bool) -> Joint:
    """The largest or the smallest absolute value."""
    largest = ord > 0

    def function(t: Tensor) -> Tensor:
        return torch.linalg.vector_norm(t, ord, dim, keepdim)

    def composed(rows: Any) -> Any:
        if largest:  # of Gaussians, which absolute values are not
            return torch.amax(torch.cat([rows, -rows], -1), -1)
        if rows.shape[-1] > 1:
            check_nonzero(rows, "the smallest absolute value is far from Gaussian near zero")
        return torch.amin(torch.abs(rows), -1)

    moments = largest_size if largest else smallest_size
    kind = _reduction(x, function, moments, composed, dim, keepdim)
    if x.cov.needs_functions:  # samples take it as it is, with the derivative of the whole
        kind.composed = None
    return kind


@rule(torch.norm, exact=False, source=_SQUARES)
def norm(
    input: Any,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: Any = None,
) -> Any:
    if p == "nuc":
        raise UnsupportedOperation("", reason="the nuclear norm has no moments in closed form")
    order = 2 if p is None or p == "fro" else p
    return torch.linalg.vector_norm(input, order, dim, keepdim, dtype=dtype)


@rule(T.norm, exact=False, source=_SQUARES)
def norm_method(
    self: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    return torch.norm(self, p, dim, keepdim, dtype=dtype)


@rule(torch.linalg.norm, exact=False, source=_SQUARES)
def linalg_norm(
    input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    matrices = ord is not None and (input.ndim == 2 if dim is None else not isinstance(dim, int))
    if matrices and ord != "fro" and not (isinstance(dim, list | tuple) and len(dim) == 1):
        raise UnsupportedOperation(
            "", reason=f"the matrix norm of order {ord!r} has no moments in closed form"
        )
    order = 2 if ord is None or ord == "fro" else ord
    return torch.linalg.vector_norm(input, order, dim, keepdim, dtype=dtype)


@rule(F.pairwise_distance, exact=False, source=_SQUARES)
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


@rule(F.normalize, exact=False, source=SOURCE)
def normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Any:
    if p != 2:
        raise UnsupportedOperation(
            "", reason=f"directions in the norm of order {p} have no rule", remedy="Use p=2."
        )
    groups, _ = _rows(input, dim)
    groups = Groups(groups.split, groups.merge, groups.count, centred=False)
    scale = groups.count**-0.5
    least = max(eps * eps / groups.count, torch.finfo(torch.float32).tiny)
    return normalise(input, groups, lambda x: F.normalize(x, p, dim, eps), least, scale, None)
