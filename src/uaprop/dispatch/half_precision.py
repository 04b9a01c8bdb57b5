"""Variances of float16 tensors that float16 cannot hold.

Its smallest number is 6e-8, the variance of a standard deviation of 2.4e-4, and its largest 65504. Where an
operation's variances come near these, it is computed again in float32 to see what was lost. Single elements
may be, as those of a ReLU far below zero are: all together must not be more than a hundredth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..covariance import Covariance, Diagonal
from ..errors import UnsupportedOperation
from ..kinds import Random
from ..numerics.underflow import has_values, safe
from .handle import Handle

__all__ = ["check_factors", "check_range"]

_LOST = 0.01  # of the sum of all variances


def check_range(
    rule: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    var: Tensor,
    wrap: Callable[[Tensor, Covariance], Handle],
) -> None:
    """Refuse an operation whose variances are lost in float16.

    Args:
        rule: the operation's.
        args: its positional arguments.
        kwargs: its keyword arguments.
        var: the result's variances, of independent elements.
        wrap: makes a random tensor.

    Raises:
        UnsupportedOperation: if more than a hundredth of the variance is lost, or becomes infinite.
    """
    if var.numel() == 0 or not has_values(var):
        return
    low, high = var.detach().aminmax()
    if bool(low >= safe(torch.float16)) and bool(high < torch.inf):
        return

    known: dict[int, Any] = {}  # an operand given twice is still the same one

    def single(value: Any) -> Any:
        if isinstance(value, Random):
            if id(value) not in known:
                known[id(value)] = wrap(value.loc.float(), Diagonal(value.cov.var.float()))
            return known[id(value)]
        if value is torch.float16:
            return torch.float32
        is_half = isinstance(value, Tensor) and value.dtype == torch.float16
        return value.float() if is_half else value

    args, kwargs = pytree.tree_map(
        single, (args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Random)
    )
    with torch.no_grad():
        kind = rule(*args, **kwargs)
        _, cov = Diagonal.through(kind)
    _refuse_if_lost(cov.var.double(), var)


def check_factors(values: Tensor, var: Tensor) -> None:
    """Refuse factors whose variances are lost in float16, although they are not lost themselves.

    Args:
        values: the factors, ``(factors, …)``.
        var: the sum of their squares.

    Raises:
        UnsupportedOperation: if more than a hundredth of the variance is lost, or becomes infinite.
    """
    if var.numel() and has_values(var):
        low, high = var.detach().aminmax()
        if not (bool(low >= safe(torch.float16)) and bool(high < torch.inf)):
            _refuse_if_lost(values.detach().double().square().sum(0), var)


def _refuse_if_lost(exact: Tensor, var: Tensor) -> None:
    kept = var.detach().double()
    finite = exact.isfinite()
    lost = (exact - kept).abs().where(finite, 0).sum() > _LOST * exact.where(finite, 0).sum()
    if not bool(lost):
        return
    raise UnsupportedOperation(
        "",
        reason="float16 cannot hold the variances of its result, which are between "
        f"{float(exact.min()):.2g} and {float(exact.max()):.2g}",
        remedy='Use a model and an input in float32 or bfloat16, or method="hybrid" or "samples", whose '
        "variances are in float32.",
    )
