"""The Jacobian at the mean: the baseline that anyone can write in five lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..numerics.convolve import convolve
from .arguments import Arguments
from .options import whole_numbers_if_given
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
    whole_numbers_if_given(chunk=chunk)
    arguments = Arguments(args, kwargs)
    scheme = Scheme("linear", {"outputs": outputs}, _carried, _taken, _residual, _ROWS)
    with _Convolutions():
        return respond(scheme, model, arguments, [None] * len(arguments.gaussians), outputs, chunk)


class _Convolutions(TorchFunctionMode):
    """Convolutions whose derivatives a processor is quick at, as the rules of other methods have them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The function's own answer."""
        if func is torch.conv2d:
            return convolve(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _carried(mean: Tensor, stack: Tensor | None) -> Tensor:
    return mean.clone()  # the model may write to its input, and to a leaf it must not


def _taken(value: Any) -> tuple[Tensor, None] | None:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.requires_grad:
        return None  # it does not depend on the input
    return value, None


def _residual(mean: Tensor, unexplained: Any, linear: Tensor) -> Residual:
    return Residual(mean)
