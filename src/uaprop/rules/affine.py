"""Convolutions and linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from ..kinds import Linear, Random
from ..numerics.convolve import convolve
from ..numerics.frozen import Convolution
from ..registry import rule
from .contract import product
from .repeated import convolve_repeated
from .rows import Weights


def _convolution(function: Callable[..., Any], input: Any, weight: Any, bias: Any) -> Any:
    """Any convolution: random input, random weights, or both; a random bias is added."""
    if isinstance(bias, Random):
        offset: Any = bias
        return function(input, weight, None) + offset.view(-1, *[1] * (weight.ndim - 2))
    return product(function, input, weight, bias)


def _register_convolution(operation: Callable[..., Any]) -> None:
    pictures = operation is F.conv2d
    convolved = convolve if pictures else operation

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
        origin = input.origin if isinstance(input, Random) else None
        if origin is not None and not isinstance(weight, Random) and not isinstance(bias, Random):
            options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            return convolve_repeated(operation, origin, weight, bias, options)

        def function(x: Any, w: Any, b: Any) -> Any:
            return convolved(x, w, b, stride, padding, dilation, groups)

        kind = _convolution(function, input, weight, bias)
        if isinstance(kind, Linear) and kind.inputs[0] is input and input.ndim == weight.ndim:
            kind.rows = lambda: Weights(
                function,
                weight,
                bias,
                Convolution(stride, padding, dilation, groups) if pictures else None,
            )
        return kind

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
        def function(x: Any, w: Any, b: Any) -> Any:
            return operation(x, w, b, stride, padding, output_padding, groups, dilation)

        return _convolution(function, input, weight, bias)

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
