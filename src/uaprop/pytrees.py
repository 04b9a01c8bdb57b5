"""Gaussians as trees of tensors, for torch.compile, torch.export and tree_map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree

from .covariance import Diagonal, Factors, Finished
from .gaussian import Gaussian

__all__: list[str] = []


def _register(
    kind: type,
    name: str,
    fields: Callable[[Any], dict[str, Any]],
    make: Callable[..., Any],
    context: Callable[[Any], tuple[Any, ...]] = lambda value: (),
) -> None:
    """Make a class a tree whose children are its fields; ``make`` takes them and the context."""
    pytree.register_pytree_node(
        kind,
        lambda value: (list(fields(value).values()), context(value)),
        lambda children, rest: make(*children, *rest),
        serialized_type_name=name,
        flatten_with_keys_fn=lambda value: (
            [(pytree.GetAttrKey(key), child) for key, child in fields(value).items()],
            context(value),
        ),
    )


_register(
    Gaussian,
    "uaprop.Gaussian",
    lambda x: {"loc": x.loc, "cov": x.cov},
    Gaussian.from_covariance,
)
_register(Diagonal, "uaprop.covariance.Diagonal", lambda c: {"var": c.var}, Diagonal)
_register(
    Finished, "uaprop.covariance.Finished", lambda c: {"var": c.var, "kept": c.kept}, Finished
)
_register(
    Factors,
    "uaprop.covariance.Factors",
    lambda c: {"values": c.values},
    Factors,
    lambda c: (c.sources,),
)
