"""Sums, differences, products, quotients and powers."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Elementwise, Linear, Random
from ..numerics import elementary
from ..registry import rule
from .contract import product, scaled_by
from .positive import check_positive, inverse_power, quotient
from .ratio import power_of

T = torch.Tensor
_LARGEST_POWER = 32


def _sum(input: Any, other: Any, factor: float) -> Linear:
    """``input + factor · other``, either or both random."""
    if input is other:
        return scaled_by(input, 1 + factor)  # x + x is 2x, not a sum of independent terms
    scale = factor * factor
    if isinstance(input, Random) and isinstance(other, Random):
        return Linear(
            (input, other),
            affine=lambda x, y: torch.add(x, y, alpha=factor),
            linear=lambda x, y: torch.add(x, y, alpha=factor),
            squared=lambda v, w: torch.add(v, w, alpha=scale),
        )
    if isinstance(input, Random):
        return Linear(
            (input,),
            affine=lambda x: torch.add(x, other, alpha=factor),
            linear=lambda x: _as_sum(x, other),
            squared=lambda v: _as_sum(v, other),
        )
    return Linear(
        (other,),
        affine=lambda y: input + factor * y,
        linear=lambda y: _as_sum(factor * y, input),
        squared=lambda v: _as_sum(scale * v, input),
    )


def _as_sum(x: Tensor, constant: Any) -> Tensor:
    """``x`` in the shape and dtype that adding the constant gives."""
    if not isinstance(constant, Tensor) or (constant.ndim == 0 and constant.dtype == x.dtype):
        return x
    # Dimensions first: comparing the sizes of a vector with a batch would fix the batch of a traced program.
    same = constant.ndim == x.ndim and constant.shape == x.shape
    if same and constant.dtype == x.dtype:
        return x
    return x + torch.zeros_like(constant)


@rule(torch.add, T.add, T.__add__, T.__radd__)
def add(input: Any, other: Any, *, alpha: float = 1) -> Linear:
    return _sum(input, other, alpha)


@rule(torch.sub, T.sub, torch.subtract, T.subtract, T.__sub__)
def sub(input: Any, other: Any, *, alpha: float = 1) -> Linear:
    return _sum(input, other, -alpha)


@rule(torch.rsub)
def rsub(input: Any, other: Any, *, alpha: float = 1) -> Linear:
    return _sum(other, input, -alpha)


@rule(torch.neg, T.neg, torch.negative, T.negative)
def neg(input: Random) -> Linear:
    return Linear((input,), affine=torch.neg, linear=torch.neg, squared=lambda v: v)


def _as_factor(value: Any, partner: Any) -> Any:
    """A constant that can be squared: a mask or a byte would overflow in its own dtype."""
    if isinstance(value, Tensor) and not value.is_floating_point() and isinstance(partner, Random):
        return value.to(partner.loc.dtype)
    return value


@rule(torch.mul, T.mul, torch.multiply, T.multiply, T.__mul__, T.__rmul__)
def mul(input: Any, other: Any) -> Any:
    if input is other:
        return Elementwise((input,), functools.partial(elementary.power, exponent=2))
    left, right = _as_factor(input, other), _as_factor(other, input)
    if not isinstance(right, Random):
        return scaled_by(left, right)
    if not isinstance(left, Random):
        return scaled_by(right, left)
    return product(lambda x, y, _: x * y, left, right)


@rule(torch.div, T.div, torch.true_divide, T.true_divide, torch.divide, T.divide, T.__truediv__)
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        raise UnsupportedOperation("", reason=f"rounding_mode={rounding_mode!r} is not linear")
    if isinstance(other, Random):
        return quotient(input, other)
    divisor = _as_factor(other, input)
    return Linear(
        (input,),
        affine=lambda x: x / other,
        linear=lambda x: x / other,
        squared=lambda v: v / divisor / divisor,
    )


@rule(torch.pow, T.pow)
def pow(input: Any, exponent: Any) -> Any:
    if isinstance(exponent, Random):
        if isinstance(input, int | float) and input > 0:
            power: Any = exponent
            return torch.exp(power * math.log(input))
        raise UnsupportedOperation(
            "", reason="the exponent is random and the base not a positive number"
        )
    if isinstance(exponent, Tensor) and exponent.ndim == 0:
        exponent = exponent.item()
    if not isinstance(exponent, int | float):
        raise UnsupportedOperation("", reason="the exponent is not a number")
    if exponent == int(exponent) and exponent < 0:
        return inverse_power(input, int(exponent))
    if exponent not in range(_LARGEST_POWER + 1):
        check_positive(input)
        return power_of(input, exponent)
    return Elementwise((input,), functools.partial(elementary.power, exponent=int(exponent)))
