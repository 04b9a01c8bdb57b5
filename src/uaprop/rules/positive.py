"""Roots, logarithms and quotients of what is positive."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Elementwise, Joint, Linear, Random
from ..numerics import positive
from ..numerics.moments import Moments
from ..registry import rule
from .ratio import SOURCE, positive_power, power_of, ratio

__all__ = ["check_positive", "positive_power", "power_of", "quotient"]

T = torch.Tensor


def check_positive(input: Random, offset: float = 0.0) -> None:
    """Refuse what may well be negative: an element less than three deviations above zero.

    While a program is traced its values are not known, and nothing is refused; nor are draws, which take the
    function as it is, whatever the other elements of their batch are.

    Raises:
        UnsupportedOperation: if there is such an element.
    """
    if input.cov.needs_functions:
        return
    mean, var = input.loc.detach() + offset, input.cov.var.detach()
    if torch.compiler.is_compiling() or mean.is_meta:
        return
    if not positive.negligible_below_zero(mean, var):
        raise UnsupportedOperation(
            "",
            reason="it is for what is positive, and some element is less than three standard "
            "deviations above zero",
            remedy="Keep it away from zero, as in torch.sqrt(x + 0.1), or use "
            'method="samples" or method="hybrid", which take real draws.',
        )


def _register_power(exponent: float, *operations: Callable[..., Tensor]) -> None:
    @rule(*operations, exact=False, source=SOURCE)
    def power(input: Random) -> Elementwise:
        check_positive(input)
        return power_of(input, exponent)

    power.__name__ = operations[0].__name__


_register_power(0.5, torch.sqrt, T.sqrt)
_register_power(-0.5, torch.rsqrt, T.rsqrt)
_register_power(-1.0, torch.reciprocal, T.reciprocal)


def _logarithm(function: Callable[[Tensor], Tensor], scale: float, offset: float) -> Any:
    """Moments of ``scale · log(offset + x)``, at zero variance torch's own value."""

    def moments(mean: Tensor, var: Tensor) -> Moments:
        result = positive.log(mean + offset, var, scale)
        return result._replace(mean=torch.where(var > 0, result.mean, function(mean)))

    return moments


def _register_logarithm(
    scale: float, offset: float, function: Callable[[Tensor], Tensor], *spellings: Any
) -> None:
    moments = _logarithm(function, scale, offset)

    @rule(function, *spellings, exact=False, source=SOURCE)
    def logarithm(input: Random) -> Elementwise:
        check_positive(input, offset)
        return Elementwise((input,), moments)

    logarithm.__name__ = function.__name__


_register_logarithm(1.0, 0.0, torch.log, T.log)
_register_logarithm(1 / math.log(2), 0.0, torch.log2, T.log2)
_register_logarithm(1 / math.log(10), 0.0, torch.log10, T.log10)
_register_logarithm(1.0, 1.0, torch.log1p, T.log1p, torch.special.log1p)


def quotient(input: Any, other: Random) -> Any:
    """``input / other`` with a positive divisor: a product with its reciprocal."""
    if input is other:
        return Linear((other,), torch.ones_like, torch.zeros_like, torch.zeros_like)
    check_positive(other)
    if not isinstance(input, Random):
        return _constant_over(input, other)
    shape = torch.broadcast_shapes(input.shape, other.shape)
    pair: Any = torch.stack([x.expand(shape) for x in (input, other)])  # type: ignore[attr-defined]
    return Joint(
        (pair,),
        lambda x: x[0] / x[1],
        _independent_quotient,
        lambda x: ratio(x[0], torch.square(x[0]), x[1], -1.0, bounded=False),
    )


def _independent_quotient(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """``E[x] E[1/y]``, and the variance of a product (Goodman 1960)."""
    inverse = positive.power(mean[1], var[1], -1.0)
    first = torch.where(var[1] > 0, mean[0] * inverse.mean, mean[0] / mean[1])
    certain = torch.where(var[1] > 0, inverse.mean, 1 / mean[1]).square() * var[0]
    return first, certain + (mean[0].square() + var[0]) * inverse.var


def _constant_over(value: Any, other: Random) -> Elementwise:
    def moments(mean: Tensor, var: Tensor) -> Moments:
        result = positive.power(mean, var, -1.0)
        first = torch.where(var > 0, value * result.mean, value / mean)
        return Moments(first, value * result.gain, value * result.var * value)

    return Elementwise((other,), moments)
