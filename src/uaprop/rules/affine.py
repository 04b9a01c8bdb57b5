"""Convolutions and linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from ..kinds import Random
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
