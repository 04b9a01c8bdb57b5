"""Average and maximum over windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Joint, Linear, Random
from ..numerics.maximum import Marginal, tournament
from ..registry import rule


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

        return _average(input, dims, pool, total)

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


_OUTSIDE = -1e30  # torch pads a maximum with minus infinity; this loses as well, and subtracts


def _largest_along(
    marginal: Marginal, dim: int, out: int, kernel: int, stride: int, padding: int, dilation: int
) -> Marginal:
    """Maximum over sliding windows along one dimension (negative ``dim``)."""
    mean, var = marginal
    span = (out - 1) * stride + 1
    after = max(0, span + dilation * (kernel - 1) - mean.shape[dim] - padding)
    where = [0, 0] * (-dim - 1) + [padding, after]
    mean = F.pad(mean, where, value=_OUTSIDE)
    var = F.pad(var, where)

    def shifted(tensor: Tensor, k: int) -> Tensor:
        start = k * dilation
        index: Any = (..., slice(start, start + span, stride), *[slice(None)] * (-dim - 1))
        return tensor[index]

    return tournament([(shifted(mean, k), shifted(var, k)) for k in range(kernel)])


def _larger(a: Any, b: Any) -> Any:
    """The larger of two random tensors, whatever correlation they have."""
    return b + F.relu(a - b)


def _largest_of(entrants: list[Any]) -> Any:
    """The largest of several, in a balanced tournament."""
    if len(entrants) == 1:
        return entrants[0]
    half = len(entrants) // 2
    return _larger(_largest_of(entrants[:half]), _largest_of(entrants[half:]))


def far_below(input: Random) -> float:
    """A number that no element gets near to, but that is no larger in size than it need be."""
    if input.loc.numel() == 0:
        return 0.0
    reach = 12 * float(input.cov.var.detach().max()) ** 0.5
    low, high = (float(bound) for bound in input.loc.detach().aminmax())
    return low - max(reach, high - low, 1.0)


def _composed_along(
    input: Any, dim: int, out: int, kernel: int, stride: int, padding: int, dilation: int
) -> Any:
    """Maximum over sliding windows along one dimension, by way of differences and ReLU."""
    span = (out - 1) * stride + 1
    after = max(0, span + dilation * (kernel - 1) - input.shape[dim] - padding)
    if padding or after:
        where = [0, 0] * (-dim - 1) + [padding, after]
        input = F.pad(input, where, value=far_below(input))
    starts = (k * dilation for k in range(kernel))
    cuts = [(..., slice(k, k + span, stride), *[slice(None)] * (-dim - 1)) for k in starts]
    return _largest_of([input[cut] for cut in cuts])


def _register_max_pool(
    operation: Callable[..., Tensor], dims: int, *spellings: Callable[..., Tensor]
) -> None:
    @rule(operation, *spellings, exact=False, source="Clark (1961), in a balanced tournament")
    def max_pool(
        input: Random,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Joint:
        if return_indices:
            raise UnsupportedOperation(
                "", reason="the index of a maximum is random", remedy="Use return_indices=False."
            )
        kernels = per_dim(kernel_size, dims)
        strides = per_dim(stride, dims) if stride else kernels
        paddings, dilations = per_dim(padding, dims), per_dim(dilation, dims)

        def pool(x: Tensor) -> Tensor:
            return operation(x, kernels, strides, paddings, dilations, ceil_mode)

        outs = pool(torch.empty((1, *input.shape[-dims:]), device="meta")).shape[-dims:]

        def moments(mean: Tensor, var: Tensor) -> Marginal:
            working = torch.promote_types(mean.dtype, torch.float32)
            marginal = (mean.to(working), var.to(working))
            for i in range(dims):
                marginal = _largest_along(
                    marginal, i - dims, outs[i], kernels[i], strides[i], paddings[i], dilations[i]
                )
            return marginal[0].to(mean.dtype), marginal[1].to(mean.dtype)

        def composed(x: Any) -> Any:
            for i in range(dims):
                x = _composed_along(
                    x, i - dims, outs[i], kernels[i], strides[i], paddings[i], dilations[i]
                )
            return x

        return Joint((input,), function=pool, moments=moments, composed=composed)

    max_pool.__name__ = f"max_pool{dims}d"


_register_max_pool(F.max_pool1d, 1, torch.max_pool1d)
_register_max_pool(F.max_pool2d, 2, torch.max_pool2d)
_register_max_pool(F.max_pool3d, 3, torch.max_pool3d)


@rule(
    F.max_pool1d_with_indices,
    F.max_pool2d_with_indices,
    F.max_pool3d_with_indices,
    torch.max_pool1d_with_indices,
)
def max_pool_with_indices(input: Random, *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedOperation(
        "", reason="the index of a maximum is random", remedy="Use return_indices=False."
    )
