"""The answer of a method that knows a dense covariance and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..covariance import Finished
from ..gaussian import Gaussian
from ..provenance import Provenance, StandardError
from .linear_part import LinearPart

__all__ = ["Share", "answer", "blocks", "cut_like", "joined"]


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
        None if first.cov.kept is None else torch.cat([y.cov.dense() for y in answers]),
        told[0],
        StandardError(*map(torch.cat, zip(*errors, strict=True))) if errors else None,
        tuple(map(_Joined, zip(*(p.shares for p in told), strict=True))),
    )


def cut_like(lengths: Sequence[int], values: Sequence[Any]) -> bool:
    """Whether values are tensors with an element for each batch element; else they are constant."""
    tensors = [v for v in values if isinstance(v, Tensor) and v.ndim > 0 and v is not values[0]]
    return len(tensors) == len(values) - 1 and [len(v) for v in values] == list(lengths)


def answer(
    mean: Tensor,
    var: Tensor,
    dense: Tensor | None,
    told: Provenance,
    error: StandardError | None,
    shares: tuple[Any, ...],
) -> Gaussian:
    """A Gaussian with its dense covariance, standard errors and attribution."""
    value = Gaussian.from_covariance(mean, Finished(var, dense))
    return value.with_provenance(replace(told, standard_error=error, shares=shares))


def blocks(dense: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The covariance of each batch element, from that of all together if need be."""
    if len(shape) == 1:
        return dense[0]
    if len(dense) == shape[0]:
        return dense
    count, size = shape[0], math.prod(shape[1:])
    return dense.reshape(count, size, count, size).diagonal(dim1=0, dim2=2).movedim(-1, 0)


@dataclass(frozen=True)
class Share:
    """What one input's elements cause of each output's variance; computed when asked for.

    Attributes:
        part: the response.
        input: which input.
        shape: its shape.
        together: whether every output may depend on all batch elements of the input.
    """

    part: LinearPart
    input: int
    shape: tuple[int, ...]
    together: bool

    def __call__(self, output: int, outputs: int | None) -> Tensor:
        """The parts of one output of each batch element, which has ``outputs`` (None: no batch)."""
        if not self.together:
            return self.part.share(output, self.input).reshape(self.shape)
        rows = self.part.outputs
        each = range(output, rows, outputs) if outputs is not None else [output]
        parts = [self.part.share(k, self.input).reshape(self.shape) for k in each]
        return torch.stack(parts) if outputs is not None else parts[0]


@dataclass(frozen=True)
class _Joined:
    """The shares of several pieces of a batch."""

    pieces: tuple[Any, ...]

    def __call__(self, output: int, outputs: int | None) -> Tensor:
        return torch.cat([piece(output, outputs) for piece in self.pieces])
