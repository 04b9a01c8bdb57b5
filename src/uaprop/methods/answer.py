"""The answer of a method that knows a dense covariance and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..attribution import Attribution, Response
from ..covariance import Finished
from ..gaussian import Gaussian
from ..provenance import Provenance, StandardError
from ..rules.extremes import Undecided
from .arguments import is_gaussian
from .linear_part import LinearPart

__all__ = ["answer", "blocks", "cut_like", "joined", "map_leaves", "shares"]


def joined(lengths: Sequence[int], *answers: Any) -> Any:
    """The results of several pieces of a batch as one, ``lengths`` being those of the pieces."""
    first = answers[0]
    if isinstance(first, Gaussian):
        return torch.cat(answers)
    for value in answers:
        if isinstance(value, Undecided):  # whatever it happened to be for the other items
            return value
    return torch.cat(answers) if cut_like(lengths, answers) else first


def cut_like(lengths: Sequence[int], values: Sequence[Any]) -> bool:
    """Whether values are tensors with an element for each batch element; else they are constant."""
    tensors = [v for v in values if isinstance(v, Tensor) and v.ndim > 0]
    return len(tensors) == len(values) and [len(v) for v in values] == list(lengths)


def answer(
    mean: Tensor,
    var: Tensor,
    dense: Tensor | None,
    told: Provenance,
    error: StandardError | None,
    shares: tuple[Attribution, ...],
) -> Gaussian:
    """A Gaussian with its dense covariance, standard errors and attribution."""
    value = Gaussian._from_covariance(mean, Finished(var, dense))
    return value.with_provenance(replace(told, standard_error=error, shares=shares))


def blocks(dense: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The covariance of each batch element, from that of all together if need be."""
    if len(shape) == 1:
        return dense[0]
    if len(dense) == shape[0]:
        return dense
    count, size = shape[0], math.prod(shape[1:])
    return dense.reshape(count, size, count, size).diagonal(dim1=0, dim2=2).movedim(-1, 0)


def shares(part: LinearPart, inputs: Sequence[Tensor], together: bool) -> tuple[Attribution, ...]:
    """What each input's elements cause of the outputs' variances.

    Args:
        part: the response.
        inputs: the inputs, for their shapes.
        together: whether every output may depend on all batch elements of the input.

    Returns:
        One for each input.
    """
    triples = zip(part.rows, part.pushed, inputs, strict=True)
    return tuple(
        Attribution(
            (Response(rows, pushed, part.weights, tuple(x.shape if together else x.shape[1:])),)
        )
        for rows, pushed, x in triples
    )


def map_leaves(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """A function of the leaves of several results, in the structure of the first.

    Values and indices of a maximum come in torch's own tuple from tensors, and in a plain one from Gaussians.

    Returns:
        The structure, with what the function returns.
    """
    leaves, structure = pytree.tree_flatten(first, is_leaf=is_gaussian)
    rest = [pytree.tree_leaves(other, is_leaf=is_gaussian) for other in others]
    found = [function(*values) for values in zip(leaves, *rest, strict=True)]
    return pytree.tree_unflatten(found, structure)
