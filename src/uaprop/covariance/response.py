"""A mean whose derivative is the statistical one.

By Bonnet's theorem ``∂E[f(x)]/∂mean = E[f'(x)]``, the gain, as long as the variance is held fixed. A
pass whose nonlinearities are given their gains as derivatives is therefore the network's statistical
linearisation, and ordinary reverse-mode differentiation of its mean gives ``J = E[∂y/∂x]``, one row per
backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..numerics.subnormal import tame

__all__ = ["with_gain", "with_gains"]


class _WithGain(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, value: Tensor, gain: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gain,) = ctx.saved_tensors
        return *tame(grad * gain), None, None


def with_gain(input: Tensor, value: Tensor, gain: Tensor) -> Tensor:
    """``value``, with ``gain`` as its derivative by ``input``; all three of one shape."""
    if not input.requires_grad:
        return value
    result: Tensor = _WithGain.apply(input, value, gain)
    return result


def with_gains(value: Tensor, *parts: tuple[Tensor, Tensor]) -> Tensor:
    """``value``, with a gain as its derivative by each of several inputs: ``(input, gain)``."""
    zero = torch.zeros_like(value)
    for input, gain in parts:
        value = value + with_gain(input, zero, gain) if input.requires_grad else value
    return value
