"""The Jacobian at the mean: the baseline that anyone can write in five lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import UnsupportedOperation
from ..numerics.convolve import convolve
from .arguments import Arguments
from .derivative_check import check_derivative
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
    differentiable. That autograd's derivative is the model's is checked along one direction of the noise.

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
    with _Derivatives():
        with torch.inference_mode(False):
            check_derivative(model, arguments)
        return respond(scheme, model, arguments, None, outputs, chunk)


class _Derivatives(TorchFunctionMode):
    """Convolutions whose derivatives a processor is quick at, as the rules of other methods have them.

    And a refusal of what autograd has a wrong derivative for: ``max_norm`` of an embedding rescales the
    weights behind autograd's back, and ``as_strided_scatter`` gives the input the gradient of its source, and
    the source the gradient of other elements if that is a view.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The function's own answer."""
        kwargs = kwargs or {}
        if func is torch.conv2d:
            return convolve(*args, **kwargs)
        if func in _EMBEDDINGS:
            _check_embedding(func, args, kwargs)
        if func in _STRIDED:
            _check_strided(args, kwargs)
        return func(*args, **kwargs)


_EMBEDDINGS = {F.embedding: 3, F.embedding_bag: 3}  # and which argument max_norm is


def _check_embedding(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    place = _EMBEDDINGS[func]
    weight = args[1] if len(args) > 1 else kwargs.get("weight")
    max_norm = args[place] if len(args) > place else kwargs.get("max_norm")
    if max_norm is None or not isinstance(weight, Tensor) or weight.grad_fn is None:
        return  # a parameter does not depend on the input
    raise UnsupportedOperation(
        f"torch.nn.functional.{func.__name__}",
        reason="max_norm rescales the weights outside of autograd, so that their derivative is wrong",
        remedy='Rescale the weights before, or use method="samples".',
    )


_STRIDED = (torch.as_strided_scatter, Tensor.as_strided_scatter)


def _check_strided(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    operands = (*args[:2], kwargs.get("input"), kwargs.get("src"))
    if any(isinstance(operand, Tensor) and operand.requires_grad for operand in operands):
        raise UnsupportedOperation(
            "torch.as_strided_scatter",
            reason="torch's derivative of it is wrong",
            remedy='Assign to an index of the tensor instead, or use method="samples".',
        )


def _carried(mean: Tensor, stack: Tensor | None) -> Tensor:
    return mean.clone()  # the model may write to its input, and to a leaf it must not


def _taken(value: Any) -> tuple[Tensor, None] | None:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.requires_grad:
        return None  # it does not depend on the input
    return value, None


def _residual(mean: Tensor, unexplained: Any, linear: Tensor) -> Residual:
    return Residual(mean)
