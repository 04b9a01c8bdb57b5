"""Normalisation by channel: with fixed statistics a linear map, with the input's own a joint one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Joint, Linear, Random
from ..numerics.constants import derived
from ..registry import rule
from .normalise import SOURCE, Groups, affine, channelwise, normalise


def _fixed(
    input: Random, mean: Tensor, var: Tensor, weight: Any, bias: Any, momentum: Any, eps: float
) -> Linear:
    """Statistics that are given: a factor and an offset for each channel."""
    scale, shift, squared, rises = derived(
        _factors, mean, var, weight, bias, numbers=(eps, input.ndim)
    )

    def function(x: Tensor) -> Tensor:
        stacked = not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(x)
        if stacked:  # torch's own is slow under vmap
            return torch.addcmul(shift, x, scale).to(x.dtype)
        y = F.batch_norm(x, mean, var, weight, bias, False, momentum, eps)
        if y.requires_grad and not torch.compiler.is_compiling():
            # torch 2.13 differentiates it wrongly for cotangents of unusual strides: (N, C, H, 1), permuted
            y.register_hook(lambda grad: None if grad is None else grad.contiguous())
        return y

    return Linear(
        (input,),
        affine=function,
        linear=lambda x: (x * scale).to(x.dtype),
        squared=lambda v: (v * squared).to(v.dtype),
        increasing=input.raised is not None and rises(),
    )


def _factors(
    mean: Tensor, var: Tensor, weight: Any, bias: Any, eps: float, dims: int
) -> tuple[Tensor, Tensor, Tensor, Callable[[], bool]]:
    """Factor, offset and squared factor of each channel; and whether all factors are positive."""
    shape = (-1, *[1] * (dims - 2))
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    rises = functools.cache(lambda: bool((scale > 0).all()))
    return scale.view(shape), shift.view(shape), scale.square().view(shape), rises


def _track(input: Any, groups: Groups, mean: Any, var: Any, momentum: float) -> None:
    """Move running statistics towards what the input's are expected to be.

    Torch takes those of the batch. Their expectations include the noise: the variance's is
    ``n/(n-1) (mean((m - mean(m))²) + mean(v) - Var[mean(x)])``; averaged over the instances if each
    is normalised by itself.
    """
    if mean is None and var is None:
        return
    count = groups.count
    with torch.no_grad():
        rows = groups.split(input)
        level: Any = torch.mean(rows, -1, True)
        squared = (rows.loc - level.loc).square() + rows.cov.var
        unbiased = (squared.mean(-1) - level.cov.var.squeeze(-1)) * (count / max(count - 1, 1))
        for running, value in ((mean, level.loc.squeeze(-1)), (var, unbiased)):
            if running is not None:
                average = value.reshape(-1, input.shape[1]).mean(0).to(running.dtype)
                running.mul_(1 - momentum).add_(average, alpha=momentum)


@rule(F.batch_norm, exact=False, source="exact with fixed statistics; " + SOURCE)
def batch_norm(
    input: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if isinstance(weight, Random) or isinstance(bias, Random):
        y = F.batch_norm(input, running_mean, running_var, None, None, training, momentum, eps)
        return affine(y, channelwise(weight, input.ndim), channelwise(bias, input.ndim))
    if not training:
        if running_mean is None or running_var is None:
            raise UnsupportedOperation(
                "", reason="outside of training it needs running statistics, and has none"
            )
        return _fixed(input, running_mean, running_var, weight, bias, momentum, eps)
    moved = (input.shape[1], input.shape[0], *input.shape[2:])
    count = math.prod(input.shape) // input.shape[1]
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got {input.shape}")
    groups = Groups(
        lambda x: x.transpose(0, 1).reshape(moved[0], -1),
        lambda x: x.reshape(moved).transpose(0, 1),
        count,
    )
    _track(input, groups, running_mean, running_var, momentum)
    return _by_channel(input, groups, weight, bias, eps)


def _by_channel(input: Random, groups: Groups, weight: Any, bias: Any, eps: float) -> Joint:
    flat = groups.count * input.shape[1] == math.prod(input.shape)  # over the batch

    def function(x: Tensor) -> Tensor:
        if flat:
            return F.batch_norm(x, None, None, weight, bias, True, 0.1, eps)
        return F.instance_norm(x, None, None, weight, bias, True, 0.1, eps)

    scale, shift = channelwise(weight, input.ndim), channelwise(bias, input.ndim)
    return normalise(input, groups, function, eps, scale, shift)


@rule(F.instance_norm, exact=False, source="exact with fixed statistics; " + SOURCE)
def instance_norm(
    input: Any,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if isinstance(weight, Random) or isinstance(bias, Random):
        y = F.instance_norm(input, running_mean, running_var, None, None, True, momentum, eps)
        return affine(y, channelwise(weight, input.ndim), channelwise(bias, input.ndim))
    shape = tuple(input.shape)
    count = math.prod(shape[2:])
    if count == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got {shape}")
    groups = Groups(lambda x: x.reshape(shape[0], shape[1], -1), lambda x: x.reshape(shape), count)
    _track(input, groups, running_mean, running_var, momentum)
    return _by_channel(input, groups, weight, bias, eps)
