"""Layers that normalise by the mean and spread of their own input.

All are one map of groups of elements: centre, divide by the root mean square, scale and shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Joint, Random
from ..numerics.normalised import of_independent
from ..registry import rule
from .ratio import ratio

__all__ = ["SOURCE", "Groups", "affine", "channelwise", "normalise"]

SOURCE = (
    "docs/theory/normalisation.md: a Gaussian element over a log-normal normaliser that depends on it; "
    "quadratic forms by Isserlis (1918); an integral over exponential tilts where that varies much"
)


@dataclass(frozen=True)
class Groups:
    """Which elements are normalised together.

    Attributes:
        split: from a tensor to ``(…, elements)``, one row for each group.
        merge: back again.
        count: how many elements a group has.
        centred: whether the group's mean is taken off first.
    """

    split: Callable[[Any], Any]
    merge: Callable[[Any], Any]
    count: int
    centred: bool = True


def normalise(
    input: Random,
    groups: Groups,
    function: Callable[[Tensor], Tensor],
    eps: float,
    weight: Any,
    bias: Any,
) -> Joint:
    """``weight · c/√(mean(c²) + ε) + bias`` in every group.

    Args:
        input: the random operand.
        groups: which elements belong together.
        function: torch's own.
        eps: ε.
        weight: broadcasts with the input, or None.
        bias: broadcasts with the input, or None.

    Returns:
        The joint kind.

    Raises:
        UnsupportedOperation: if all that is left of a group is a sign.
    """
    if eps < 0:
        raise UnsupportedOperation("", reason=f"eps={eps} is negative, so its root may not exist")
    if groups.count - groups.centred == 1:
        raise UnsupportedOperation(
            "",
            reason=f"of {groups.count} element{'s' * groups.centred} normalised together only a "
            "sign is left, and the moments are for more",
            remedy='Normalise over more elements, or use method="samples" or method="hybrid".',
        )

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        working = torch.promote_types(mean.dtype, torch.float32)
        rows, spreads = (groups.split(t.to(working)) for t in (mean, var))
        found = of_independent(rows, spreads, eps, groups.centred)
        first, second = (groups.merge(t) for t in found)
        if weight is not None:
            first, second = first * weight, second * weight * weight
        if bias is not None:
            first = first + bias
        certain = (spreads == 0).all(-1, keepdim=True).expand_as(spreads)
        first = torch.where(groups.merge(certain), function(mean), first.to(mean.dtype))
        return first, second.to(mean.dtype)

    def composed(x: Any) -> Any:
        rows = groups.split(x)
        centred = rows - torch.mean(rows, -1, True) if groups.centred else rows
        squares = torch.square(centred)
        total = torch.mean(squares, -1, True) + eps
        y = groups.merge(ratio(centred, squares, total, -0.5))
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    # Of real draws the derivative is averaged: that of the whole is tame, that of 1/√s is not.
    whole = input.cov.needs_functions
    return Joint((input,), function, moments, composed=None if whole else composed)


# ------------------------------------------------------------------ torch's own


def _last(input: Random, shape: Any, centred: bool) -> Groups:
    """All elements of the last dimensions together."""
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if list(input.shape[-len(sizes) :]) != sizes:
        raise ValueError(f"a tensor of shape {tuple(input.shape)} does not end in {sizes}")
    return Groups(
        lambda x: x.flatten(-len(sizes)),
        lambda x: x.unflatten(-1, sizes),
        math.prod(sizes),
        centred,
    )


def affine(y: Any, weight: Any, bias: Any) -> Any:
    """``weight · y + bias``, for what may be random."""
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@rule(F.layer_norm, exact=False, source=SOURCE)
def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if isinstance(weight, Random) or isinstance(bias, Random):
        return affine(F.layer_norm(input, normalized_shape, eps=eps), weight, bias)

    def function(x: Tensor) -> Tensor:
        return F.layer_norm(x, normalized_shape, weight, bias, eps)

    groups = _last(input, normalized_shape, True)
    return normalise(input, groups, function, eps, weight, bias)


@rule(torch.layer_norm, exact=False, source=SOURCE)
def torch_layer_norm(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    return layer_norm(input, normalized_shape, weight, bias, eps)


@rule(F.rms_norm, torch.rms_norm, exact=False, source=SOURCE)
def rms_norm(
    input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    if isinstance(weight, Random):
        return F.rms_norm(input, normalized_shape, eps=eps) * weight  # type: ignore[operator]

    def function(x: Tensor) -> Tensor:
        return F.rms_norm(x, normalized_shape, weight, eps)

    groups = _last(input, normalized_shape, False)
    least = torch.finfo(input.loc.dtype).eps if eps is None else eps
    return normalise(input, groups, function, least, weight, None)


def channelwise(value: Any, ndim: int) -> Any:
    """A vector with one value for each channel, in a shape that broadcasts with ``(batch, channels, …)``."""
    return None if value is None else value.view(-1, *[1] * (ndim - 2))


@rule(F.group_norm, exact=False, source=SOURCE)
def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if input.shape[1] % num_groups:
        raise ValueError(f"{input.shape[1]} channels do not divide into {num_groups} groups")
    weight, bias = channelwise(weight, input.ndim), channelwise(bias, input.ndim)
    if isinstance(weight, Random) or isinstance(bias, Random):
        return affine(F.group_norm(input, num_groups, eps=eps), weight, bias)
    shape = tuple(input.shape)

    def function(x: Tensor) -> Tensor:
        scale, shift = (None if t is None else t.flatten() for t in (weight, bias))
        return F.group_norm(x, num_groups, scale, shift, eps)

    groups = Groups(
        lambda x: x.reshape(shape[0], num_groups, -1),
        lambda x: x.reshape(shape),
        math.prod(shape[1:]) // num_groups,
    )
    return normalise(input, groups, function, eps, weight, bias)


@rule(torch.group_norm, exact=False, source=SOURCE)
def torch_group_norm(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    return group_norm(input, num_groups, weight, bias, eps)
