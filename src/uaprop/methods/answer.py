"""The answer of a method that knows a dense covariance and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..covariance import Finished
from ..gaussian import Gaussian
from ..provenance import Provenance, StandardError

__all__ = ["answer", "blocks", "cut_like", "joined", "shares"]

_SHARES_ELEMENTS = 2**25  # the most that is kept for attribution


def joined(lengths: Sequence[int], *answers: Any) -> Any:
    """The answers of several pieces of a batch as one, ``lengths`` being those of the pieces."""
    first = answers[0]
    if not isinstance(first, Gaussian):
        return torch.cat(answers) if cut_like(lengths, answers) else first
    told = [y.provenance for y in answers]
    errors = [p.standard_error for p in told if p is not None and p.standard_error is not None]
    return answer(
        torch.cat([y.loc for y in answers]),
        torch.cat([y.cov.var for y in answers]),
        torch.cat([y.cov.dense() for y in answers]),
        told[0],
        StandardError(*map(torch.cat, zip(*errors, strict=True))) if errors else None,
        tuple(map(torch.cat, zip(*(p.shares for p in told), strict=True))),
    )


def cut_like(lengths: Sequence[int], values: Sequence[Any]) -> bool:
    """Whether values are tensors with an element for each batch element; else they are constant."""
    tensors = [v for v in values if isinstance(v, Tensor) and v.ndim > 0 and v is not values[0]]
    return len(tensors) == len(values) - 1 and [len(v) for v in values] == list(lengths)


def answer(
    mean: Tensor,
    var: Tensor,
    dense: Tensor,
    told: Provenance,
    error: StandardError | None,
    shares: tuple[Tensor, ...],
) -> Gaussian:
    """A Gaussian with its dense covariance, standard errors and attribution."""
    value = Gaussian.from_covariance(mean, Finished(var, dense))
    return value.with_provenance(Provenance(told.method, told.options, told.reason, error, shares))


def blocks(dense: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The covariance of each batch element, from that of all together if need be."""
    if len(shape) == 1:
        return dense[0]
    if len(dense) == shape[0]:
        return dense
    count, size = shape[0], math.prod(shape[1:])
    return dense.reshape(count, size, count, size).diagonal(dim1=0, dim2=2).movedim(-1, 0)


def shares(
    pushed: Sequence[Tensor],
    rows: Sequence[Tensor],
    leaves: Sequence[Tensor],
    shape: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """``J_i (J Σ)_i``: what each input element causes of each output's variance."""
    if sum(row.numel() for row in rows) > _SHARES_ELEMENTS:
        return ()
    parts = []
    for p, j, leaf in zip(pushed, rows, leaves, strict=True):
        share = p * j
        if len(shape) == 1:
            share = share.reshape(*shape, *leaf.shape)
        elif len(share) == shape[0] and share.shape[0] == leaf.shape[0]:
            share = share.reshape(*shape, *leaf.shape[1:])
        else:  # every output of a batch element depends on the inputs of all of them
            share = share.reshape(*shape, *leaf.shape)
        parts.append(share)
    return tuple(parts)
