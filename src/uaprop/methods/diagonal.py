"""The report's method: every element independent, mean and variance in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..covariance import Diagonal
from ..provenance import Provenance
from .arguments import Arguments, explained

__all__ = ["check_independent", "diagonal"]


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
    check_independent("diagonal", Arguments(args, kwargs))
    return explained(model(*args, **kwargs), Provenance("diagonal"))


def check_independent(method: str, arguments: Arguments) -> None:
    """Refuse inputs whose elements are correlated.

    Raises:
        TypeError: if there is one.
    """
    for x in arguments.gaussians:
        if not isinstance(x.cov, Diagonal):
            raise TypeError(
                f"method {method!r} needs inputs of independent elements; an input has a "
                f"{type(x.cov).__name__.lower()} covariance"
            )
