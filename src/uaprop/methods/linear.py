"""The Jacobian at the mean: the baseline that anyone can write in five lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .arguments import Arguments
from .options import whole_number
from .response import Residual, Scheme, respond

__all__ = ["linear"]

_ROWS = 16


def linear(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    outputs: Sequence[int] | None = None,
    chunk: int | None = None,
) -> Any:
    """``mean = f(m)`` and ``covariance = J Σ Jᵀ`` with the Jacobian ``J`` at the mean.

    Right for noise so small that no unit changes its regime. It needs no rules; the model has to be
    differentiable.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        outputs: which outputs of each batch element are wanted; all by default.
        chunk: batch elements at a time; bounds the memory.

    Returns:
        The model's answer, in Gaussians with a dense covariance and attribution.
    """
    if chunk is not None:
        whole_number("chunk", chunk, 1)
    arguments = Arguments(args, kwargs)
    scheme = Scheme("linear", {"outputs": outputs}, lambda mean, _: mean, _taken, _residual, _ROWS)
    return respond(scheme, model, arguments, [None] * len(arguments.gaussians), outputs, chunk)


def _taken(value: Any) -> tuple[Tensor, None] | None:
    return (value, None) if isinstance(value, Tensor) and value.is_floating_point() else None


def _residual(mean: Tensor, stack: Any, unexplained: Any, linear: Tensor) -> Residual:
    return Residual(mean)
