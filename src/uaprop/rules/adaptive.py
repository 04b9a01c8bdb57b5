"""Max-pooling to a given number of windows, whose sizes may differ by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kinds import Joint, Random
from ..numerics.maximum import Marginal
from ..registry import rule
from .average import per_dim
from .extremes import SOURCE, Dims, Undecided, moments_over


def _bounds(size: int, out: int) -> list[tuple[int, int]]:
    """Where each window of adaptive pooling begins and ends."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _register_adaptive(operation: Callable[..., Tensor], dims: int) -> None:
    @rule(operation, exact=False, source=SOURCE)
    def adaptive_max_pool(input: Random, output_size: Any, return_indices: bool = False) -> Any:
        if return_indices:
            return operation(input, output_size), Undecided()
        wanted = per_dim(output_size, dims) if output_size is not None else (None,) * dims
        sizes = input.shape[-dims:]
        outs = [out if out is not None else size for out, size in zip(wanted, sizes, strict=True)]
        if all(size % out == 0 for size, out in zip(sizes, outs, strict=True)):
            pairs = [(out, size // out) for size, out in zip(sizes, outs, strict=True)]
            split: Any = input.reshape(  # type: ignore[attr-defined]
                [*input.shape[:-dims], *[n for pair in pairs for n in pair]]
            )
            return torch.amax(split, list(range(-1, -2 * dims, -2)))
        windows = [_bounds(size, out) for size, out in zip(sizes, outs, strict=True)]

        def cut(x: Any, pooled: Callable[[Any], Any], dim: int, place: tuple[Any, ...]) -> Any:
            if dim == dims:
                return pooled(x[(..., *place)])
            parts = [cut(x, pooled, dim + 1, (*place, slice(*w))) for w in windows[dim]]
            return torch.stack(parts, -1 - (dims - 1 - dim))

        last = list(range(-dims, 0))

        def pooled(both: Tensor) -> Tensor:
            kept = both.ndim - 1 - dims
            over = Dims(list(range(kept, kept + dims)), list(range(kept)), False)
            return torch.stack(moments_over(both[0], both[1], over, 1.0))

        def moments(mean: Tensor, var: Tensor) -> Marginal:
            both = cut(torch.stack([mean, var]), pooled, 0, ())
            return both[0], both[1]

        def composed(x: Any) -> Any:
            return cut(x, lambda part: torch.amax(part, last), 0, ())

        return Joint(
            (input,),
            function=lambda x: operation(x, outs if dims > 1 else outs[0]),
            moments=moments,
            composed=composed,
        )

    adaptive_max_pool.__name__ = f"adaptive_max_pool{dims}d"


_register_adaptive(F.adaptive_max_pool1d, 1)
_register_adaptive(F.adaptive_max_pool2d, 2)
_register_adaptive(F.adaptive_max_pool3d, 3)


def _register_with_indices(
    operation: Callable[..., Any], plain: Callable[..., Tensor], *spellings: Callable[..., Any]
) -> None:
    @rule(operation, *spellings, exact=False, source=f"{SOURCE}; the indices are random")
    def with_indices(
        input: Any, output_size: Any, return_indices: bool = False
    ) -> tuple[Any, Undecided]:
        return plain(input, output_size), Undecided()

    with_indices.__name__ = operation.__name__


# The operators of an exported graph give both, too.
_register_with_indices(
    F.adaptive_max_pool1d_with_indices,
    F.adaptive_max_pool1d,
    *(torch.adaptive_max_pool1d, torch.ops.aten.adaptive_max_pool1d),
)
_register_with_indices(
    F.adaptive_max_pool2d_with_indices, F.adaptive_max_pool2d, torch.ops.aten.adaptive_max_pool2d
)
_register_with_indices(
    F.adaptive_max_pool3d_with_indices, F.adaptive_max_pool3d, torch.ops.aten.adaptive_max_pool3d
)
