"""The dense covariance: every correlation between all elements, for small networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..covariance import Diagonal, Factors, Finished, Sources
from ..covariance.full import Full
from ..covariance.terms import Term
from ..gaussian import Gaussian
from ..provenance import Provenance
from .arguments import Arguments, explained

__all__ = ["full"]


def full(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the model on Gaussians with a dense covariance.

    Keeps the correlation between any two elements of any two tensors of the pass. Exact up to and
    including the first nonlinearity if that is piecewise linear or a product; later ones treat their
    arguments as Gaussian. Time and memory grow with the square of the number of activations, the batch
    included.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them, independent of each other unless they
            share their noise already.
        kwargs: its keyword arguments.

    Returns:
        The model's answer, in Gaussians.

    Raises:
        TypeError: if an input has a covariance that is not known element by element, or half
            precision.
        ValueError: if a matrix would be too large.
    """
    arguments = Arguments(args, kwargs)
    terms: dict[Sources, Term] = {}
    random = [Gaussian._from_covariance(x.loc, _dense(x, terms)) for x in arguments.gaussians]
    return explained(arguments.run(model, random), Provenance("full"))


def _dense(x: Gaussian, terms: dict[Sources, Term]) -> Full:
    """The covariance of an input; noise that several inputs share, they still do."""
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"method 'full' computes in float32 or float64, not in {x.dtype}; convert the model and "
            "its input, as in model.float() and x.float()"
        )
    cov = x.cov
    if isinstance(cov, Full):
        return cov
    if isinstance(cov, Diagonal):
        return Full.independent(cov.var)
    if isinstance(cov, Finished):
        return Full.from_dense(cov.dense(), x.shape)
    if isinstance(cov, Factors):
        parts = cov.values.split([part.count for part in cov.sources])
        for part in cov.sources:
            if part not in terms:
                terms[part] = Term(x.loc.detach().new_ones(part.count))
        return Full({terms[s]: rows for s, rows in zip(cov.sources, parts, strict=True)}, x.loc)
    raise TypeError(
        "method 'full' needs an input whose covariance is known: of independent elements, from "
        f"factors or dense; an input has a {type(cov).__name__.lower()} covariance"
    )
