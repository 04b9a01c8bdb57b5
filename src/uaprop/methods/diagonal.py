"""The report's method: every element independent, mean and variance in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree

from ..covariance import Diagonal
from ..gaussian import Gaussian

__all__ = ["diagonal"]


def diagonal(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the model on Gaussians with independent elements.

    Two convolutions where a plain pass has one, and moments where it has an activation. The standard
    deviations of a trained network's scores come out far too small, because correlation between
    activations is ignored, and whatever follows from them, such as the mean of a softmax, is too sure
    as well.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.

    Returns:
        The model's answer, in Gaussians.

    Raises:
        TypeError: if an input is not of independent elements.
    """
    for value in pytree.tree_leaves((args, kwargs), is_leaf=lambda x: isinstance(x, Gaussian)):
        if isinstance(value, Gaussian) and not isinstance(value.cov, Diagonal):
            raise TypeError(
                "method 'diagonal' needs inputs of independent elements; an input has a "
                f"{type(value.cov).__name__.lower()} covariance"
            )
    return model(*args, **kwargs)
