"""The one entrance to every method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .adjoint import adjoint
from .arguments import Arguments
from .auto import auto
from .calibrated import calibrated
from .diagonal import diagonal
from .full import full
from .hybrid import hybrid
from .linear import linear
from .samples import samples
from .sketch import sketch

__all__ = ["METHODS", "propagate"]

METHODS: Mapping[str, Callable[..., Any]] = {
    "auto": auto,
    "diagonal": diagonal,
    "calibrated": calibrated,
    "linear": linear,
    "sketch": sketch,
    "adjoint": adjoint,
    "hybrid": hybrid,
    "full": full,
    "samples": samples,
}


def propagate(model: Callable[..., Any], x: Any, method: str = "auto", **options: Any) -> Any:
    """Carry a Gaussian input through a model.

    Args:
        model: any callable on tensors, usually an ``nn.Module``; it is not changed.
        x: a :class:`~uaprop.Gaussian`; or a tuple of positional or a dict of keyword arguments for the model,
            nested as it likes, in which any number are Gaussian and independent of each other.
        method: how much correlation to carry, and how.

            - ``"auto"``: chooses by the number of outputs, and says so in the answer's ``provenance``.
            - ``"hybrid"``: real draws and the exact linear response; next to no bias, has standard errors.
            - ``"adjoint"``: probes and the exact linear response; closed-form moments.
            - ``"sketch"``: probes alone; any number of outputs in one pass.
            - ``"calibrated"``: one variance factor per channel and layer, fitted beforehand.
            - ``"diagonal"``: the report's method, independent elements; deviations far too small.
            - ``"linear"``: the Jacobian at the mean.
            - ``"full"``: the dense covariance of everything; for small networks.
            - ``"samples"``: Monte Carlo; no rules needed.
        **options: the method's own, see the function of its name in :mod:`uaprop.methods`.

    Returns:
        What the model returns, with Gaussians in place of tensors: one, a tuple, a dict, …

    Raises:
        ValueError: if there is no such method.
        TypeError: if there is no Gaussian in ``x``, or the method has no such option.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; choose from {', '.join(METHODS)}")
    run = METHODS[method]
    arguments = Arguments.of(x)
    if not arguments.gaussians:
        raise TypeError(
            f"propagate needs a ua.Gaussian among the inputs, not {type(x).__name__}; "
            "make one with ua.Gaussian(mean, var)"
        )
    allowed = {
        p.name: p.default is p.empty
        for p in inspect.signature(run).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    if unknown := sorted(set(options) - set(allowed)):
        hint = '; for those of a method name it, as in method="hybrid"' if method == "auto" else ""
        raise TypeError(
            f"method {method!r} has no option {unknown[0]!r}; "
            f"it has {', '.join(sorted(allowed)) or 'none'}{hint}"
        )
    if missing := [name for name, needed in allowed.items() if needed and name not in options]:
        raise TypeError(f"method {method!r} needs the option {missing[0]!r}")
    return run(model, *arguments.filled(arguments.gaussians), **options)
