"""The expected softplus, which is what a binary cross-entropy needs, and its gradient.

``∂E[f]/∂m = E[f']`` and ``∂E[f]/∂v = ½ E[f'']`` (Price 1958): for softplus the expectations of the sigmoid
``s`` and of ``s' = s (1 - s)``. All three come from one quadrature for noise up to the function's own scale.
None is a difference, so that unlike a variance they need no formula of their own for very small noise.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .logistic import sigmoid, softplus
from .moments import HALF, Moments, in_memory
from .quadrature import hermite, tensors
from .widths import by_width

__all__ = ["expected_softplus"]

_NARROW = 0.8  # σ up to which the quadrature has all digits
_RULES = {torch.float64: hermite(28), torch.float32: hermite(20)}


def expected_softplus(mean: Tensor, var: Tensor) -> Tensor:
    """``E[log(1 + e^x)]``, of the shape of mean and variance."""
    if mean.dtype in HALF or mean.dtype != var.dtype or not in_memory(mean, var):
        return softplus(mean, var).mean
    found: Tensor = _ExpectedSoftplus.apply(mean, var)
    return found


class _ExpectedSoftplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor) -> Tensor:
        value, slope, bend = by_width(_narrow, _wide, _NARROW, mean, var)
        ctx.save_for_backward(mean, var, slope, bend)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        mean, var, slope, bend = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative
            slope, bend = softplus(mean, var).gain, sigmoid(mean, var).gain
        return grad * slope, grad * bend * 0.5


def _narrow(mean: Tensor, var: Tensor) -> Moments:
    """``E[f]``, ``E[f']`` and, in the place of the variance, ``E[f'']``."""
    nodes, weights = tensors(_RULES[mean.dtype], mean)
    x = mean.unsqueeze(-1) + var.sqrt().unsqueeze(-1) * nodes
    s = torch.sigmoid(x)
    value = F.softplus(x, threshold=40)  # torch takes x itself from 20 on: too early for float64
    return Moments(value @ weights, s @ weights, (s * torch.sigmoid(-x)) @ weights)


def _wide(mean: Tensor, var: Tensor) -> Moments:
    value, slope, _ = softplus(mean, var)
    return Moments(value, slope, sigmoid(mean, var).gain)
