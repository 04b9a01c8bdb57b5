"""Gaussians as trees of tensors, for torch.compile, torch.export, torch.vmap and tree_map.

A tree takes a Gaussian apart into tensors and puts it together of others. What a function makes of the mean
says nothing of what it makes of the variances. So a program that walks trees finds one tensor, which is the
Gaussian in another form (:mod:`~uaprop.tensor_form`): what a function makes of that is right, or refused.
Only torch's own means to trace and vectorise programs get the tensors that a Gaussian consists of: they
replace each by one that stands for it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.fx import _pytree as fx_pytree
from torch.utils import _pytree as pytree

from .covariance import Covariance, Diagonal, Factors
from .errors import UnsupportedOperation
from .gaussian import Gaussian
from .tensor_form import TensorForm

__all__: list[str] = []

_WALKERS = ("torch.utils._pytree", "torch.utils._cxx_pytree", "torch.utils.pytree", __name__)
_TRACERS = tuple(
    f"torch.{name}"
    for name in (
        "_dynamo",
        "_export",
        "_functorch",
        "_higher_order_ops",
        "_inductor",
        "export",
        "fx",
    )
)
_GENERATED = "<eval_with_key>"  # what torch calls the code that it makes of a graph


class _Context:
    """What of a Gaussian is no tensor.

    Args:
        kind: "form" if there is one part; else how the covariance is represented.
        rest: the noise sources of factors; a covariance that has no parts.
    """

    __slots__ = ("kind", "rest")

    def __init__(self, kind: str, rest: Any = None) -> None:
        self.kind = kind
        self.rest = rest

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Context) or self.kind != other.kind:
            return False
        return self.rest is other.rest or bool(self.rest == other.rest)

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        return self.kind


class _Parts:
    """What came back for the parts, if it is no tensor: names, shapes, numbers of dimensions."""

    __slots__ = ("values",)

    def __init__(self, values: list[Any]) -> None:
        self.values = values


def _is_for_tracing() -> bool:
    """Whether it is torch's own machinery that walks the tree."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _WALKERS:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return False
    name = frame.f_globals.get("__name__") or ""
    return name.startswith(_TRACERS) or frame.f_code.co_filename.startswith(_GENERATED)


def _parts(x: Gaussian) -> tuple[list[Tensor], _Context]:
    """The tensors that a Gaussian consists of, and the rest."""
    loc, cov = x.loc, x.cov
    if type(cov) is Diagonal:
        return [loc, cov.var], _Context("diagonal")
    if type(cov) is Factors:
        return [loc, cov.values], _Context("factors", cov.sources)
    return [loc], _Context("other", cov)


def _flatten(x: Gaussian) -> tuple[list[Any], _Context]:
    if torch.compiler.is_dynamo_compiling():
        raise UnsupportedOperation(
            "torch.utils._pytree.tree_flatten",
            reason="torch.compile cannot follow a Gaussian through a tree",
            remedy="Compile ua.as_module(model), whose whole pass is one node.",
        )
    return _parts(x) if _is_for_tracing() else ([TensorForm.of(x)], _Context("form"))


def _flatten_with_keys(x: Gaussian) -> tuple[list[Any], _Context]:
    parts, context = _flatten(x)
    names = ("loc", "var") if context.kind != "form" else ("form",)
    return [(pytree.GetAttrKey(n), part) for n, part in zip(names, parts, strict=False)], context


def _whole(value: Any) -> Any:
    return value.gaussian if isinstance(value, TensorForm) else value


def _unflatten(parts: Any, context: _Context) -> Any:
    if context.kind == "form":  # whatever a function made of it; it had no values to read
        return pytree.tree_map(_whole, parts[0])  # several, as the five crops of an image
    if not any(isinstance(part, Tensor) for part in parts):
        return _Parts(list(parts))
    loc, *rest = parts
    cov: Covariance
    if context.kind == "diagonal":
        cov, shape = Diagonal(*rest), getattr(rest[0], "shape", None)
    elif context.kind == "factors":
        cov = Factors(rest[0], context.rest)
        shape = getattr(rest[0], "shape", (None,))[1:]
    else:
        cov = context.rest
        shape = cov.var.shape
    if shape != getattr(loc, "shape", None):
        raise UnsupportedOperation(
            "torch.utils._pytree.tree_unflatten",
            reason="mean and covariance of a Gaussian came back with shapes that do not fit",
            remedy="Write a function of mean and variance, and make a Gaussian of them inside.",
        )
    return Gaussian._from_covariance(loc, cov)


pytree.register_pytree_node(
    _Parts, lambda x: (x.values, None), lambda values, _: _Parts(list(values))
)
pytree.register_pytree_node(
    Gaussian,
    _flatten,
    _unflatten,
    serialized_type_name="uaprop.Gaussian",
    flatten_with_keys_fn=_flatten_with_keys,
    to_dumpable_context=lambda context: context.kind,
    from_dumpable_context=_Context,
)
# a program of torch.export takes its arguments apart by this
fx_pytree.register_pytree_flatten_spec(Gaussian, lambda x, spec: _parts(x)[0])
