"""Randomness that an operation adds itself: dropout in training mode.

A dropped-out activation is ``x ξ`` with ``ξ = 0`` or ``1/(1-p)``: mean 1, variance ``p/(1-p)``. So in
training mode a pass gives the moments over all masks at once, and no mask is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import UnsupportedOperation
from ..kinds import Linear, Noise, Random
from ..registry import rule


def _dropped(input: Random, p: float, training: bool, shape: tuple[int, ...]) -> Any:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    if p == 1:
        return Linear((input,), torch.zeros_like, torch.zeros_like, torch.zeros_like)
    return Noise((input,), p / (1 - p), shape)


@rule(F.dropout, source="mean and variance of a Bernoulli mask")
def dropout(input: Random, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return _dropped(input, p, training, tuple(input.shape))


@rule(torch.dropout)
def torch_dropout(input: Random, p: float, train: bool) -> Any:
    return dropout(input, p, train)


def stochastic_depth(input: Random, p: float, mode: str, training: bool = True) -> Any:
    """A branch that is left out at random: of each batch element ("row") or of all ("batch").

    torchvision's operation of that name. It draws its mask from plain tensors, so a Gaussian that went
    through it would come out with the variance of one mask.

    Args:
        input: the branch's output, the batch first.
        p: how likely it is left out; otherwise it is divided by ``1 - p``.
        mode: "row" or "batch".
        training: without it the identity.

    Returns:
        The noise; the input itself, or zeros, where there is none.

    Raises:
        ValueError: for another mode.
    """
    if mode not in ("row", "batch"):
        raise ValueError(f"mode has to be either 'batch' or 'row', but got {mode}")
    rows = input.shape[0] if mode == "row" and input.ndim > 0 else 1
    return _dropped(input, p, training, (rows, *[1] * (input.ndim - 1))[: input.ndim])


def drop_path(
    x: Any, drop_prob: float = 0.0, training: bool = False, scale_by_keep: bool = True
) -> Any:
    """The name of timm for :func:`stochastic_depth` by rows; without ``scale_by_keep`` nothing is divided."""
    if training and drop_prob > 0 and not scale_by_keep:
        x = x * (1 - drop_prob)
    return stochastic_depth(x, drop_prob, "row", training)


def _register_channel_dropout(operation: Callable[..., Any], dims: int) -> None:
    @rule(operation)
    def channel_dropout(
        input: Random, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        lead = input.ndim - dims
        return _dropped(input, p, training, (*input.shape[:lead], *[1] * dims))

    channel_dropout.__name__ = operation.__name__


_register_channel_dropout(F.dropout1d, 1)
_register_channel_dropout(F.dropout2d, 2)
_register_channel_dropout(F.dropout3d, 3)


@rule(F.alpha_dropout, F.feature_alpha_dropout)
def alpha_dropout(
    input: Random, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Any:
    if not training or p == 0:
        return input
    raise UnsupportedOperation("", reason="its noise in training mode has no rule yet")
