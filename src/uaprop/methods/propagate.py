"""The one entrance to every method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from .adjoint import adjoint
from .diagonal import diagonal
from .hybrid import hybrid
from .linear import linear
from .samples import samples
from .sketch import sketch

__all__ = ["METHODS", "propagate"]

METHODS: Mapping[str, Callable[..., Any]] = {
    "diagonal": diagonal,
    "linear": linear,
    "sketch": sketch,
    "adjoint": adjoint,
    "hybrid": hybrid,
    "samples": samples,
}


def propagate(model: Callable[..., Any], x: Any, method: str = "diagonal", **options: Any) -> Any:
    """Carry a Gaussian input through a model.

    Args:
        model: any callable on tensors, usually an ``nn.Module``; it is not changed.
        x: a :class:`~uaprop.Gaussian`; or a tuple of positional or a dict of keyword arguments for the model,
            nested as it likes, in which any number are Gaussian and independent of each other.
        method: ``"diagonal"``, the report's method: independent elements, one pass; or
            ``"samples"``, Monte Carlo: no rules needed, as many passes as ``samples``.
        **options: the method's own; see :func:`~uaprop.methods.diagonal.diagonal` and
            :func:`~uaprop.methods.samples.samples`.

    Returns:
        What the model returns, with Gaussians in place of tensors: one, a tuple, a dict, …

    Raises:
        ValueError: if there is no such method.
        TypeError: if there is no Gaussian in ``x``, or the method has no such option.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; choose from {', '.join(METHODS)}")
    run = METHODS[method]
    if isinstance(x, Mapping):
        args, kwargs = (), dict(x)
    else:
        args, kwargs = (tuple(x) if isinstance(x, tuple | list) else (x,)), {}
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Gaussian))
    if not any(isinstance(leaf, Gaussian) for leaf in leaves):
        raise TypeError(
            f"propagate needs a ua.Gaussian among the inputs, not {type(x).__name__}; "
            "make one with ua.Gaussian(mean, var)"
        )
    allowed = {
        p.name for p in inspect.signature(run).parameters.values() if p.kind is p.KEYWORD_ONLY
    }
    if unknown := sorted(set(options) - allowed):
        raise TypeError(
            f"method {method!r} has no option {unknown[0]!r}; "
            f"it has {', '.join(sorted(allowed)) or 'none'}"
        )
    return run(model, args, kwargs, **options)
