"""Roots and logarithms of what is positive, and quotients of what is not zero."""

from __future__ import annotations

import functools
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

__all__ = [
    "check_nonzero",
    "check_positive",
    "inverse_power",
    "positive_power",
    "power_of",
    "quotient",
]

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


def check_nonzero(
    input: Random, why: str = "a quotient has no mean if its divisor may be zero"
) -> None:
    """Refuse what may well be zero: an element less than three standard deviations away from it.

    Args:
        input: what is to be away from zero.
        why: the reason, for people.

    Raises:
        UnsupportedOperation: if there is such an element.
    """
    if input.cov.needs_functions:
        return
    mean, var = input.loc.detach(), input.cov.var.detach()
    if torch.compiler.is_compiling() or mean.is_meta:
        return
    if not positive.negligible_below_zero(mean.abs(), var):
        raise UnsupportedOperation(
            "",
            reason=f"{why}, and some element is less than three standard deviations away from zero",
            remedy="Keep it away from zero, as in 1 / (x + 0.1), or use "
            'method="samples" or method="hybrid", which take real samples.',
        )


def _register_power(exponent: float, *operations: Callable[..., Tensor]) -> None:
    @rule(*operations, exact=False, source=SOURCE)
    def power(input: Random) -> Elementwise:
        check_positive(input)
        return power_of(input, exponent)

    power.__name__ = operations[0].__name__


_register_power(0.5, torch.sqrt, T.sqrt)
_register_power(-0.5, torch.rsqrt, T.rsqrt)


@rule(torch.reciprocal, T.reciprocal, exact=False, source=SOURCE)
def reciprocal(input: Random) -> Elementwise:
    return inverse_power(input, -1)


def inverse_power(input: Random, exponent: int) -> Elementwise:
    """``xⁿ`` for a negative integer ``n``, of what is away from zero on either side."""
    check_nonzero(input)
    return Elementwise((input,), functools.partial(positive.signed_power, exponent=exponent))


def _logarithm(function: Callable[[Tensor], Tensor], scale: float) -> Any:
    """Moments of ``scale · log x``, at zero variance torch's own value."""

    def moments(mean: Tensor, var: Tensor) -> Moments:
        result = positive.log(mean, var, scale)
        return result._replace(mean=torch.where(var > 0, result.mean, function(mean)))

    return moments


def _register_logarithm(
    scale: float, function: Callable[[Tensor], Tensor], *spellings: Any
) -> None:
    moments = _logarithm(function, scale)

    @rule(function, *spellings, exact=False, source=SOURCE)
    def logarithm(input: Random) -> Elementwise:
        check_positive(input)
        return Elementwise((input,), moments)

    logarithm.__name__ = function.__name__


_register_logarithm(1.0, torch.log, T.log)
_register_logarithm(1 / math.log(2), torch.log2, T.log2)
_register_logarithm(1 / math.log(10), torch.log10, T.log10)


@rule(torch.log1p, T.log1p, torch.special.log1p, exact=False, source=SOURCE)
def log1p(input: Random) -> Elementwise:
    check_positive(input, 1.0)
    return Elementwise((input,), positive.log1p)


@rule(torch.xlogy, T.xlogy, torch.special.xlogy, exact=False, source=SOURCE)
def xlogy(input: Any, other: Any) -> Any:
    """``x log y``, zero where a constant ``x`` is zero, whatever ``y`` is."""
    if input is other:
        raise UnsupportedOperation(
            "",
            reason="x log x of one random tensor has no rule",
            remedy='Use method="samples" or method="hybrid".',
        )
    if not isinstance(other, Random):
        logarithm = torch.log(torch.as_tensor(other, dtype=input.dtype, device=input.device))
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(logarithm).all()):
            raise UnsupportedOperation("", reason="some logarithm of a constant is not finite")
        return input * logarithm
    argument: Any = other
    if isinstance(input, Random):
        factor: Any = input
        return factor * torch.log(argument)
    factor = torch.as_tensor(input, dtype=other.loc.dtype, device=other.loc.device)
    ignored = factor == 0
    one = torch.ones((), dtype=factor.dtype, device=factor.device)
    return factor * torch.log(torch.where(ignored, one, argument))


def quotient(input: Any, other: Random) -> Any:
    """``input / other`` with a divisor away from zero: a product with its reciprocal."""
    if input is other:
        return Linear((other,), torch.ones_like, torch.zeros_like, torch.zeros_like)
    check_nonzero(other)
    if not isinstance(input, Random):
        return _constant_over(input, other)
    shape = torch.broadcast_shapes(input.shape, other.shape)
    sign = torch.where(other.loc.detach() < 0, -1, 1).to(other.loc.dtype)
    dividend, divisor = input * sign, other * sign  # type: ignore[operator]
    pair: Any = torch.stack([x.expand(shape) for x in (dividend, divisor)])
    return Joint(
        (pair,),
        lambda x: x[0] / x[1],
        _independent_quotient,
        lambda x: ratio(x[0], None, x[1], -1.0),
    )


def _independent_quotient(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """``E[x] E[1/y]``, and the variance of a product (Goodman 1960)."""
    inverse = positive.power(mean[1], var[1], -1.0)
    first = torch.where(var[1] > 0, mean[0] * inverse.mean, mean[0] / mean[1])
    certain = torch.where(var[1] > 0, inverse.mean, 1 / mean[1]).square() * var[0]
    return first, certain + (mean[0].square() + var[0]) * inverse.var


def _constant_over(value: Any, other: Random) -> Elementwise:
    def moments(mean: Tensor, var: Tensor) -> Moments:
        result = positive.signed_power(mean, var, -1)
        first = torch.where(var > 0, value * result.mean, value / mean)
        return Moments(first, value * result.gain, value * result.var * value)

    return Elementwise((other,), moments)
