"""The report's method: every element independent, mean and variance in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..covariance import Diagonal
from ..covariance.postponed import postponing
from ..gaussian import Gaussian
from ..numerics.layout import fastest, usual
from ..numerics.precision import variances_in
from ..provenance import Provenance
from .apart import is_training
from .arguments import Arguments, explained, mapped

__all__ = ["check_independent", "diagonal", "quickly", "settle"]

T = TypeVar("T")


def diagonal(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    var_dtype: torch.dtype | None = None,
) -> Any:
    """Run the model on Gaussians with independent elements.

    Two convolutions where a plain pass has one, and moments where it has an activation. The standard
    deviations of a trained network's scores come out far too small, because correlation between
    activations is ignored, and whatever follows from them, such as the mean of a softmax, is too sure
    as well.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        var_dtype: ``torch.bfloat16`` sums up variances in that; deviations change by about 0.2%, and
            convolutions of variances take half the time on processors that know the format.

    Returns:
        The model's answer, in Gaussians.

    Raises:
        TypeError: if an input is not of independent elements.
    """
    arguments = Arguments(args, kwargs)
    check_independent("diagonal", arguments)

    def run() -> Any:
        # not the caller's own, which the model may write to
        random = [Gaussian.from_covariance(x.loc, x.cov) for x in arguments.gaussians]
        with variances_in(var_dtype), postponing():
            answer = arguments.run(model, random)
            settle(answer)
        return mapped(_usual, answer)

    answer = quickly(model, run, arguments)
    options = {} if var_dtype is None else {"var_dtype": var_dtype}
    return explained(answer, Provenance("diagonal", options))


def settle(answer: Any) -> None:
    """Compute all variances of an answer that are still waiting."""
    mapped(lambda value: value.cov.var, answer)


def quickly(model: Callable[..., Any], run: Callable[[], T], arguments: Arguments) -> T:
    """``run()`` in the fastest layout; as it is if a part is in training mode, where a second run is seen."""
    if is_training(model):
        return run()
    return fastest(run, *(x.loc for x in arguments.gaussians))


def _usual(value: Gaussian) -> Gaussian:
    """An output in the usual layout."""
    loc = usual(value.loc)
    if loc is value.loc:
        return value
    return Gaussian.from_covariance(loc, Diagonal(usual(value.cov.var)))


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
