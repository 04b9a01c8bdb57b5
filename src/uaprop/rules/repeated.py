"""A convolution of a tensor whose padding repeats its elements.

``nn.Conv2d(padding_mode="reflect")`` pads and then convolves. Where one window meets the same element
twice, its coefficient is the *sum* of two weights: ``(w_a + w_b)² = w_a² + w_b² + 2 w_a w_b``. The squared
map is that of the padded variance, plus twice the products for every such pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kinds import Linear, Random
from .average import per_dim

__all__ = ["convolve_repeated"]


def _last(place: tuple[int, ...]) -> Any:
    return (..., *place)


def convolve_repeated(
    operation: Callable[..., Tensor],
    origin: tuple[Random, Callable[[Tensor], Tensor]],
    weight: Tensor,
    bias: Tensor | None,
    options: dict[str, Any],
) -> Linear:
    """``operation(pad(x), weight, bias)`` as one linear map of ``x``.

    Args:
        operation: conv1d, conv2d or conv3d.
        origin: the tensor before padding, and the padding.
        weight: the kernel.
        bias: the bias, or None.
        options: stride, padding, dilation and groups.

    Returns:
        The linear kind, exact for independent elements of ``x``.
    """
    input, pad = origin
    dims = weight.ndim - 2
    strides, dilations = per_dim(options["stride"], dims), per_dim(options["dilation"], dims)
    sizes = weight.shape[2:]
    zeros = _zero_padding(options["padding"], sizes, dilations)

    def squared(v: Tensor) -> Tensor:
        result = operation(pad(v), weight * weight, None, **options)
        spans = [(n - 1) * s + 1 for n, s in zip(result.shape[-dims:], strides, strict=True)]
        around = F.pad(pad(v), zeros)
        # positions as floats, which padding takes; float32 counts exactly to 2^24
        count = v.shape[-dims:].numel()
        exact = torch.float32 if count < 2**24 else torch.float64
        numbers = torch.arange(count, dtype=exact, device=v.device)
        lead = (1,) * (v.ndim - dims)
        numbers = F.pad(pad(numbers.view(*lead, *v.shape[-dims:])), zeros)

        def seen_by(tensor: Tensor, place: tuple[int, ...]) -> Tensor:
            starts = [p * d for p, d in zip(place, dilations, strict=True)]
            cut = (slice(a, a + n, s) for a, n, s in zip(starts, spans, strides, strict=True))
            index: Any = (..., *cut)
            return tensor[index]

        for a, b in itertools.combinations(itertools.product(*map(range, sizes)), 2):
            same = seen_by(numbers, a) == seen_by(numbers, b)
            first, second = (weight[_last(place)] for place in (a, b))
            products = (first * second).view(*weight.shape[:2], *[1] * dims)
            pair = operation(seen_by(around, a) * same, products, groups=options["groups"])
            result = result + 2 * pair
        return result

    return Linear(
        (input,),
        affine=lambda x: operation(pad(x), weight, bias, **options),
        linear=lambda x: operation(pad(x), weight, None, **options),
        squared=squared,
    )


def _zero_padding(padding: Any, sizes: Any, dilations: tuple[int, ...]) -> list[int]:
    """The convolution's own padding with zeros, in F.pad's order."""
    pairs = []
    for i, (size, dilation) in enumerate(zip(sizes, dilations, strict=True)):
        total = dilation * (size - 1)
        if padding == "same":
            pairs.append([total // 2, total - total // 2])
        elif padding == "valid":
            pairs.append([0, 0])
        else:
            pairs.append([per_dim(padding, len(dilations))[i]] * 2)
    return [amount for pair in reversed(pairs) for amount in pair]
