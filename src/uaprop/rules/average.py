"""Average over windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kinds import Linear, Random
from ..registry import rule

__all__ = ["adaptive_average", "per_dim"]


def per_dim(value: Any, dims: int) -> tuple[int, ...]:
    """A size for each dimension from one for all, or from one each."""
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims // len(tuple(value)))


def _average(
    input: Random, dims: int, pool: Callable[[Tensor], Tensor], total: Callable[[Tensor], Tensor]
) -> Linear:
    """``pool`` averages over windows and ``total`` sums over them.

    Every element of a window has the coefficient ``c = pool(1)/total(1)``, whatever padding, ceiling and
    divisor are, so ``Σ c² v = c · pool(v)``.

    Returns:
        The linear kind.
    """

    def squared(v: Tensor) -> Tensor:
        ones = v.new_ones((1, *v.shape[-dims:]))
        return pool(v) * (pool(ones) / total(ones))

    return Linear((input,), affine=pool, linear=pool, squared=squared)


@rule(F.avg_pool1d, torch.avg_pool1d)
def avg_pool1d(
    input: Random,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Linear:
    (kernel,), (pad,) = per_dim(kernel_size, 1), per_dim(padding, 1)
    (step,) = per_dim(stride or kernel, 1)

    def pool(x: Tensor) -> Tensor:
        return F.avg_pool1d(x, kernel, step, pad, ceil_mode, count_include_pad)

    def total(x: Tensor) -> Tensor:
        lifted = x.unsqueeze(-2)
        window, stepping, around = (1, kernel), (1, step), (0, pad)
        return F.avg_pool2d(lifted, window, stepping, around, ceil_mode, True, 1).squeeze(-2)

    return _average(input, 1, pool, total)


def _register_avg_pool(operation: Callable[..., Tensor], dims: int) -> None:
    @rule(operation, source="the report, section II-A; its middle expression lacks a factor")
    def avg_pool(
        input: Random,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Linear:
        def pool(x: Tensor) -> Tensor:
            return operation(
                x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
            )

        def total(x: Tensor) -> Tensor:
            return operation(x, kernel_size, stride, padding, ceil_mode, True, 1)

        if ceil_mode or any(per_dim(padding, dims)):
            return _average(input, dims, pool, total)
        divisor = divisor_override or math.prod(per_dim(kernel_size, dims))  # of all windows

        def squared(v: Tensor) -> Tensor:
            return operation(v, kernel_size, stride, 0, False, True, divisor * divisor)

        return Linear((input,), affine=pool, linear=pool, squared=squared)

    avg_pool.__name__ = operation.__name__


_register_avg_pool(F.avg_pool2d, 2)
_register_avg_pool(F.avg_pool3d, 3)


def _window_lengths(size: int, out: int) -> list[int]:
    """How many elements each window of adaptive pooling holds: they differ where out ∤ size."""
    return [-(-(i + 1) * size // out) - i * size // out for i in range(out)]


def adaptive_average(input: Random, output_size: Any, dims: int) -> Linear:
    """Adaptive average pooling; the squared map divides by each window's own length again."""
    operation: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[dims - 1]
    sizes = input.shape[-dims:]
    wanted = per_dim(output_size, dims) if output_size is not None else (None,) * dims
    outs = [out if out is not None else size for out, size in zip(wanted, sizes, strict=True)]

    def pool(x: Tensor) -> Tensor:
        return operation(x, outs if dims > 1 else outs[0])

    def squared(v: Tensor) -> Tensor:
        result = pool(v)
        for i, (size, out) in enumerate(zip(sizes, outs, strict=True)):
            lengths = torch.tensor(_window_lengths(size, out), dtype=v.dtype, device=v.device)
            result = result / lengths.view(-1, *[1] * (dims - 1 - i))
        return result

    return Linear((input,), affine=pool, linear=pool, squared=squared)


@rule(F.adaptive_avg_pool1d, torch.adaptive_avg_pool1d)
def adaptive_avg_pool1d(input: Random, output_size: Any) -> Linear:
    return adaptive_average(input, output_size, 1)


@rule(F.adaptive_avg_pool2d)
def adaptive_avg_pool2d(input: Random, output_size: Any) -> Linear:
    return adaptive_average(input, output_size, 2)


@rule(F.adaptive_avg_pool3d)
def adaptive_avg_pool3d(input: Random, output_size: Any) -> Linear:
    return adaptive_average(input, output_size, 3)
