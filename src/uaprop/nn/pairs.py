"""The two ways to hand over a random tensor: a Gaussian, or the report's pair of mean and variance."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..gaussian import Gaussian

__all__ = ["Paired", "as_gaussian"]


def as_gaussian(x: Any) -> Gaussian:
    """A Gaussian from itself or from ``(mean, var)`` or ``[mean, var]``.

    Returns:
        The Gaussian.

    Raises:
        TypeError: if it is neither.
    """
    if isinstance(x, Gaussian):
        return x
    if isinstance(x, tuple | list) and len(x) == 2 and isinstance(x[0], Tensor):
        return Gaussian(x[0], x[1])
    raise TypeError(
        f"expected a ua.Gaussian or a pair (mean, var) of tensors, not {type(x).__name__}; "
        "a plain tensor is ua.Gaussian(x, var=0)"
    )


class Paired(nn.Module):
    """Mixed in before a layer of torch's: it then takes either form and answers in the same."""

    def forward(self, x: Any) -> Any:
        """Apply the layer to a Gaussian, to a pair as the report does, or to a plain tensor."""
        if isinstance(x, Tensor):  # as the layer of torch that it is, so that it can be sampled
            return super().forward(x)
        y = super().forward(as_gaussian(x))
        return y if isinstance(x, Gaussian) else type(x)((y.loc, y.cov.var))
