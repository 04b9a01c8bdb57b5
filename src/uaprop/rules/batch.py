"""Normalisation by channel: with fixed statistics a linear map, with the input's own a joint one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from ..errors import UnsupportedOperation
from ..kinds import Joint, Linear, Random
from ..numerics.constants import derived
from ..numerics.moments import HALF, in_memory
from ..numerics.steady import Statistics, normalised, statistics
from ..registry import rule
from .normalise import SOURCE, Groups, affine, channelwise, normalise


def _fixed(
    input: Random, mean: Tensor, var: Tensor, weight: Any, bias: Any, momentum: Any, eps: float
) -> Linear:
    """Statistics that are given: a factor and an offset for each channel."""
    numbers = eps, input.ndim

    def scaling() -> tuple[Tensor, Tensor]:
        return derived(_scale_and_shift, mean, var, weight, bias, numbers=(eps,))

    def function(x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return F.batch_norm(x, mean, var, weight, bias, False, momentum, eps)
        if is_batchedtensor(x):  # torch's own is slow under vmap
            factor, shift = (t.view(-1, *[1] * (input.ndim - 2)) for t in scaling())
            return torch.addcmul(shift, x, factor).to(x.dtype)
        cudnn = torch._C._get_cudnn_enabled()
        y = torch.batch_norm(x, weight, bias, mean, var, False, momentum, eps, cudnn)
        if y.requires_grad:
            # torch 2.13 differentiates it wrongly for cotangents of unusual strides: (N, C, H, 1), permuted
            y.register_hook(lambda grad: None if grad is None else grad.contiguous())
        return y

    monotone = False
    if (
        input.monotone_of is not None and not torch.compiler.is_compiling()
    ):  # else no values to look at
        monotone = bool((derived(_scale, var, weight, numbers=numbers) > 0).all())
    return Linear(
        (input,),
        affine=function,
        linear=lambda x: _times(x, derived(_scale, var, weight, numbers=numbers)),
        squared=lambda v: _times(v, derived(_squared_scale, var, weight, numbers=numbers)),
        monotone=monotone,
        scaling=scaling,
    )


def _scale(var: Tensor, weight: Any, eps: float, dims: int) -> Tensor:
    """The factor of each channel, in a shape that broadcasts with ``(batch, channels, …)``."""
    scale = torch.rsqrt(var + eps)
    return (scale if weight is None else scale * weight).view(-1, *[1] * (dims - 2))


def _squared_scale(var: Tensor, weight: Any, eps: float, dims: int) -> Tensor:
    """Its square, in fewer steps."""
    scale = torch.reciprocal(var + eps)
    return (scale if weight is None else scale * weight * weight).view(-1, *[1] * (dims - 2))


def _scale_and_shift(
    mean: Tensor, var: Tensor, weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor]:
    scale = _scale(var, weight, eps, 2)
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias


def _times(x: Tensor, factor: Tensor) -> Tensor:
    """In the dtype of ``x``, which the factor's need not be."""
    y = x * factor
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _track(
    input: Any, dims: list[int], mean: Any, var: Any, momentum: float, known: Statistics | None
) -> None:
    """Move running statistics towards what the input's are expected to be.

    Torch takes those of the batch. Their expectations include the noise: the variance's is
    ``n/(n-1) (mean((m - mean(m))²) + mean(v) - Var[mean(x)])``; averaged over the instances if each
    is normalised by itself.
    """
    if mean is None and var is None:
        return
    count = math.prod(input.shape[i] for i in dims)
    with torch.no_grad():
        if known is not None:
            centre, squared, noise = known.centre, known.spread + known.level, known.level / count
        else:
            level: Any = torch.mean(input, dims)
            centre, noise = level.loc, level.cov.var
            centred = input.loc - centre.view(
                [1 if i in dims else k for i, k in enumerate(input.shape)]
            )
            squared = centred.square_().mean(dims) + input.cov.var.mean(dims)
        unbiased = (squared - noise) * (count / max(count - 1, 1))
        for running, value in ((mean, centre), (var, unbiased)):
            if running is not None:
                average = value.reshape(-1, input.shape[1]).mean(0).to(running.dtype)
                # As torch's own batch norm does, without a new version: a graph of the caller's may hold it.
                target = running if torch.compiler.is_compiling() else running.data
                target.mul_(1 - momentum).add_(average, alpha=momentum)


def _check_statistics(input: Any, mean: Any, var: Any) -> None:
    """Refuse random running statistics: training writes to them, evaluation divides by their root."""
    if isinstance(mean, Random) or isinstance(var, Random):
        raise UnsupportedOperation(
            "",
            reason="its running statistics are random",
            remedy="Write (x - mean) / (var + eps).sqrt() * weight + bias instead.",
        )


_MANY = 1024  # elements, none of which has a say in their mean and spread


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
    _check_statistics(input, running_mean, running_var)
    if input.ndim < 2:
        raise UnsupportedOperation("", reason="its input has no dimension of channels")
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
    many = count >= _MANY
    known = None
    if many and type(input.cov).uncorrelated and _are_values(input.loc, input.cov.var):
        with torch.no_grad():
            known = statistics(input.loc, input.cov.var)
    _track(input, [0, *range(2, input.ndim)], running_mean, running_var, momentum, known)
    kind = _by_channel(input, groups, weight, bias, eps)
    if not many:
        return kind

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        found = None
        if _are_values(mean, var):
            these = known if var is input.cov.var else None
            if these is None:
                with torch.no_grad():
                    these = statistics(mean, var)
            found = normalised(mean, var, these, weight, bias, eps)
        return kind.moments(mean, var) if found is None else found

    return replace(kind, moments=moments)


def _are_values(mean: Tensor, var: Tensor) -> bool:
    """Whether statistics can be looked at, in a dtype that has the digits for them."""
    return mean.dtype not in HALF and mean.dtype == var.dtype and in_memory(mean, var)


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
    _check_statistics(input, running_mean, running_var)
    if isinstance(weight, Random) or isinstance(bias, Random):
        y = F.instance_norm(input, running_mean, running_var, None, None, True, momentum, eps)
        return affine(y, channelwise(weight, input.ndim), channelwise(bias, input.ndim))
    shape = tuple(input.shape)
    count = math.prod(shape[2:])
    if count == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got {shape}")
    groups = Groups(lambda x: x.reshape(shape[0], shape[1], -1), lambda x: x.reshape(shape), count)
    _track(input, list(range(2, input.ndim)), running_mean, running_var, momentum, None)
    return _by_channel(input, groups, weight, bias, eps)
