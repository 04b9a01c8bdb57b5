"""Scalar functions: each rule names the moments in :mod:`uaprop.numerics`."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Elementwise, Random, plain
from ..numerics import (
    clipped,
    elementary,
    gelu,
    hardswish,
    logistic,
    mish,
    rectified,
    shrinkage,
)
from ..numerics import elu as elu_family
from ..registry import rule

T = torch.Tensor

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


@rule(F.relu, torch.relu, T.relu, source="the report, eq. 19-20, a sign of eq. 20 corrected")
def relu(input: Random, inplace: bool = False) -> Elementwise:
    return Elementwise((input,), rectified.relu, kinks=((0.0, 1.0),), monotone=True)


@rule(F.leaky_relu)
def leaky_relu(input: Random, negative_slope: float = 0.01, inplace: bool = False) -> Elementwise:
    moments = functools.partial(rectified.leaky, negative_slope=negative_slope)
    kinks = ((0.0, 1 - negative_slope),)
    return Elementwise((input,), moments, kinks=kinks, monotone=negative_slope >= 0)


@rule(F.prelu, torch.prelu, T.prelu)
def prelu(input: Random, weight: Tensor) -> Elementwise:
    if weight.numel() > 1 and input.ndim > 1:
        weight = weight.view(-1, *[1] * (input.ndim - 2))
    elif weight.numel() == 1:
        weight = weight.reshape(())  # so that the result has the input's shape
    moments = functools.partial(rectified.leaky, negative_slope=weight)
    rises = not torch.compiler.is_compiling() and bool((weight >= 0).all())
    return Elementwise((input,), moments, kinks=((0.0, 1 - weight),), monotone=rises)


def _clamped(input: Random, low: Any, high: Any) -> Elementwise:
    moments = functools.partial(clipped.clamp, low=low, high=high)
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        like: Any = {"dtype": input.loc.dtype, "device": input.loc.device}
        below = torch.minimum(torch.as_tensor(low, **like), torch.as_tensor(high, **like))
    else:
        below = low if low < high else high  # torch lets the upper bound win
    numbers = not isinstance(low, Tensor) and not isinstance(high, Tensor)
    return Elementwise((input,), moments, kinks=((below, 1.0), (high, -1.0)), monotone=numbers)


@rule(F.relu6)
def relu6(input: Random, inplace: bool = False) -> Elementwise:
    return _clamped(input, 0.0, 6.0)


@rule(F.hardtanh)
def hardtanh(
    input: Random, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Elementwise:
    return _clamped(input, min_val, max_val)


@rule(torch.clamp, T.clamp, torch.clip, T.clip)
def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    if not isinstance(input, Random) or isinstance(min, Random) or isinstance(max, Random):
        return _between_random(input, min, max)
    if min is not None and max is not None:
        return _clamped(input, min, max)
    if min is not None:
        return clamp_min(input, min)
    if max is not None:
        return clamp_max(input, max)
    raise ValueError("clamp: at least one of min and max must be given")


def _between_random(input: Any, min: Any, max: Any) -> Any:
    """``min(max(x, low), high)`` where the bounds may be random; torch lets the upper bound win."""

    def tensor(bound: Any) -> Any:
        if isinstance(bound, Random | Tensor):
            return bound
        dtype, device = plain(input).dtype, plain(input).device
        return torch.as_tensor(bound, dtype=dtype, device=device)

    result = input
    if min is not None:
        result = torch.maximum(result, tensor(min))
    if max is not None:
        result = torch.minimum(result, tensor(max))
    return result


@rule(torch.clamp_min, T.clamp_min)
def clamp_min(input: Any, min: Any) -> Any:
    if not isinstance(input, Random) or isinstance(min, Random):
        return _between_random(input, min, None)
    moments = functools.partial(rectified.clamp_min, bound=min)
    return Elementwise((input,), moments, kinks=((min, 1.0),))


@rule(torch.clamp_max, T.clamp_max)
def clamp_max(input: Any, max: Any) -> Any:
    if not isinstance(input, Random) or isinstance(max, Random):
        return _between_random(input, None, max)
    moments = functools.partial(rectified.clamp_max, bound=max)
    return Elementwise((input,), moments, kinks=((max, -1.0),))


@rule(F.hardswish)
def hard_swish(input: Random, inplace: bool = False) -> Elementwise:
    return Elementwise((input,), hardswish.hardswish)


@rule(F.hardsigmoid)
def hardsigmoid(input: Random, inplace: bool = False) -> Elementwise:
    kinks = ((-3.0, 1 / 6), (3.0, -1 / 6))
    return Elementwise((input,), clipped.hardsigmoid, kinks=kinks, monotone=True)


@rule(F.elu)
def elu(input: Random, alpha: float = 1.0, inplace: bool = False) -> Elementwise:
    moments = functools.partial(elu_family.elu, a=alpha, b=1.0)
    return Elementwise((input,), moments, monotone=alpha >= 0)


@rule(F.selu, torch.selu)
def selu(input: Random, inplace: bool = False) -> Elementwise:
    left = _SELU_SCALE * _SELU_ALPHA
    moments = functools.partial(elu_family.elu, a=left, b=_SELU_SCALE)
    return Elementwise((input,), moments, monotone=True)


@rule(F.celu, torch.celu)
def celu(input: Random, alpha: float = 1.0, inplace: bool = False) -> Elementwise:
    if alpha <= 0:
        raise UnsupportedOperation("", reason=f"alpha={alpha} is not positive")
    moments = functools.partial(elu_family.elu, a=alpha, b=1.0, scale=1 / alpha)
    return Elementwise((input,), moments)


@rule(F.gelu)
def gelu_(input: Random, approximate: str = "none") -> Elementwise:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    return Elementwise((input,), gelu.gelu_tanh if approximate == "tanh" else gelu.gelu)


@rule(F.silu)
def silu(input: Random, inplace: bool = False) -> Elementwise:
    return Elementwise((input,), logistic.silu)


@rule(F.mish)
def mish_(input: Random, inplace: bool = False) -> Elementwise:
    return Elementwise((input,), mish.mish)


@rule(F.softplus)
def softplus(input: Random, beta: float = 1.0, threshold: float = 20.0) -> Elementwise:
    if threshold < 15:
        raise UnsupportedOperation(
            "",
            reason=f"with threshold={threshold} it jumps to the identity where it still differs",
            remedy="Leave the threshold at 20.",
        )
    moments = functools.partial(logistic.softplus, beta=beta)
    return Elementwise((input,), moments, monotone=beta > 0)


@rule(F.sigmoid, torch.sigmoid, T.sigmoid, torch.special.expit)
def sigmoid(input: Random) -> Elementwise:
    return Elementwise((input,), logistic.sigmoid, monotone=True)


@rule(F.tanh, torch.tanh, T.tanh)
def tanh(input: Random) -> Elementwise:
    return Elementwise((input,), logistic.tanh, monotone=True)


@rule(F.logsigmoid)
def logsigmoid(input: Random) -> Elementwise:
    return Elementwise((input,), logistic.logsigmoid)


@rule(torch.exp, T.exp)
def exp(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.exp)


@rule(torch.exp2, T.exp2, torch.special.exp2)
def exp2(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.exp2)


@rule(torch.expm1, T.expm1, torch.special.expm1)
def expm1(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.expm1)


@rule(torch.sinh, T.sinh)
def sinh(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.sinh)


@rule(torch.cosh, T.cosh)
def cosh(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.cosh)


@rule(F.threshold, torch.threshold)
def threshold(input: Random, threshold: float, value: float, inplace: bool = False) -> Elementwise:
    moments = functools.partial(shrinkage.threshold, bound=threshold, value=value)
    kinks = ((threshold, 1.0),) if threshold == value else ()
    return Elementwise((input,), moments, kinks=kinks)


@rule(F.hardshrink, torch.hardshrink, T.hardshrink)
def hardshrink(input: Random, lambd: float = 0.5) -> Elementwise:
    return Elementwise((input,), functools.partial(shrinkage.hardshrink, width=lambd))


@rule(F.softshrink)
def softshrink(input: Random, lambd: float = 0.5) -> Elementwise:
    moments = functools.partial(shrinkage.softshrink, width=lambd)
    return Elementwise((input,), moments, kinks=((-lambd, -1.0), (lambd, 1.0)))


@rule(F.tanhshrink)
def tanhshrink(input: Random) -> Elementwise:
    return Elementwise((input,), shrinkage.tanhshrink)


@rule(F.rrelu, torch.rrelu)
def rrelu(
    input: Random,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Elementwise:
    if training:
        raise UnsupportedOperation(
            "",
            reason="in training mode its slope is random itself",
            remedy="Call model.eval() first, so that it uses the average slope.",
        )
    return leaky_relu(input, (lower + upper) / 2)


@rule(torch.abs, T.abs, torch.absolute, T.absolute)
def abs(input: Random) -> Elementwise:
    return Elementwise((input,), rectified.absolute, kinks=((0.0, 2.0),))


@rule(torch.square, T.square)
def square(input: Random) -> Elementwise:
    return Elementwise((input,), functools.partial(elementary.power, exponent=2))


@rule(torch.sin, T.sin)
def sin(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.sin)


@rule(torch.cos, T.cos)
def cos(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.cos)


@rule(torch.erf, T.erf, torch.special.erf, source="Plackett (1954)")
def erf(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.erf)
