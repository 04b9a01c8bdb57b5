"""Convolutions, linear layers and batch normalisation with fixed statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random
from ..registry import rule
from .contract import product
from .repeated import convolve_repeated


def _convolution(
    operation: Callable[..., Any], input: Any, weight: Any, bias: Any, **options: Any
) -> Any:
    """Any convolution: random input, random weights, or both; a random bias is added."""
    if isinstance(bias, Random):
        trailing = [1] * (weight.ndim - 2)
        return operation(input, weight, None, **options) + bias.view(-1, *trailing)  # type: ignore[attr-defined]
    return product(lambda x, w, b: operation(x, w, b, **options), input, weight, bias)


def _register_convolution(operation: Callable[..., Any]) -> None:
    @rule(operation)
    def convolution(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        origin = input.origin if isinstance(input, Random) else None
        if origin is not None and not isinstance(weight, Random) and not isinstance(bias, Random):
            return convolve_repeated(operation, origin, weight, bias, options)
        return _convolution(operation, input, weight, bias, **options)

    convolution.__name__ = operation.__name__


def _register_transpose(operation: Callable[..., Any]) -> None:
    @rule(operation)
    def transposed(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        return _convolution(
            operation,
            input,
            weight,
            bias,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            groups=groups,
            dilation=dilation,
        )

    transposed.__name__ = operation.__name__


_register_convolution(F.conv1d)
_register_convolution(F.conv2d)
_register_convolution(F.conv3d)
_register_transpose(F.conv_transpose1d)
_register_transpose(F.conv_transpose2d)
_register_transpose(F.conv_transpose3d)


@rule(F.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    if isinstance(bias, Random):
        offset: Any = bias
        return F.linear(input, weight) + offset
    return product(F.linear, input, weight, bias)


@rule(F.batch_norm)
def batch_norm(
    input: Random,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Linear:
    if not training and (running_mean is None or running_var is None):
        raise UnsupportedOperation(
            "",
            reason="without running statistics it uses the batch's, which are random themselves",
            remedy="Train it with track_running_stats=True.",
        )
    if training or running_mean is None or running_var is None:
        raise UnsupportedOperation(
            "",
            reason="in training mode its statistics are random themselves",
            remedy="Call model.eval() first, so that it uses its running statistics.",
        )
    shape = (-1, *[1] * (input.ndim - 2))
    scale = torch.rsqrt(running_var + eps)
    if weight is not None:
        scale = scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    scale, shift = scale.view(shape), shift.view(shape)

    def affine(x: Tensor) -> Tensor:
        stacked = not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(x)
        if stacked:  # torch's own is slow under vmap
            return torch.addcmul(shift, x, scale).to(x.dtype)
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)

    return Linear(
        (input,),
        affine=affine,
        linear=lambda x: (x * scale).to(x.dtype),
        squared=lambda v: (v * scale.square()).to(v.dtype),
    )
