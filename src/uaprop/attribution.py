"""What each input element's noise causes of an output's variance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .covariance.origin import Origin

__all__ = ["Attribution", "Response"]


@dataclass(frozen=True, eq=False)
class Response:
    """The response of outputs to one input, ``J = weights · rows``, line by line.

    A line is a batch element; or all of them together, where they influence each other.

    Attributes:
        rows: ``(lines, directions, elements)``.
        pushed: ``rows · Σ``, of the same shape.
        weights: ``(lines, outputs, directions)``; None if the directions are the outputs.
        shape: the shape of a line's input elements.
    """

    rows: Tensor
    pushed: Tensor
    weights: Tensor | None
    shape: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """How many outputs a line has."""
        return (self.rows if self.weights is None else self.weights).shape[1]

    def __len__(self) -> int:
        return len(self.rows) * self.outputs

    def shares(self, index: Tensor) -> Tensor:
        """``J_i (J Σ)_i`` for outputs by their index ``line · outputs + output``, ``(n, elements)``."""
        lines, outputs = index // self.outputs, index % self.outputs
        if self.weights is None:
            return self.rows[lines, outputs] * self.pushed[lines, outputs]
        weights = self.weights[lines, outputs].unsqueeze(1)
        rows, pushed = self.rows, self.pushed
        if not torch.equal(lines, torch.arange(len(rows), device=lines.device)):
            rows, pushed = rows[lines], pushed[lines]
        return ((weights @ rows) * (weights @ pushed)).squeeze(1)

    def converted(self, convert: Callable[[Tensor], Tensor]) -> Response:
        """The same in another dtype or on another device."""
        weights = None if self.weights is None else convert(self.weights)
        return replace(self, rows=convert(self.rows), pushed=convert(self.pushed), weights=weights)

    def compact(self, lines: Tensor) -> Response:
        """Some of the lines."""
        return self.converted(lambda values: values[lines])


@dataclass(frozen=True)
class Attribution:
    """The parts of all outputs' variances that the elements of one input cause.

    Attributes:
        responses: of one or several passes.
        origin: for each output its index into the responses.
    """

    responses: tuple[Response, ...]
    origin: Origin = field(default_factory=Origin)

    def part(self, output: int, like: Tensor) -> Tensor:
        """The parts of one output of each batch element of a result.

        Args:
            output: which, counted in the flattened result of a batch element.
            like: a tensor of the result's shape.

        Returns:
            ``(batch, *shape)`` with the shape of the input's elements that the output may depend on; without
            a batch if the result has fewer than two dimensions.

        Raises:
            ValueError: if the batch elements had inputs of different shapes.
        """
        index = self.origin.of(like)
        index = index.flatten(1)[:, output] if like.ndim > 1 else index.reshape(-1)[output].view(1)
        if len({response.shape for response in self.responses}) > 1:
            raise ValueError(
                "the results that were put together have inputs of different shapes; ask for the "
                "attribution of each of them"
            )
        shape = self.responses[0].shape
        parts = self.responses[0].rows.new_zeros(len(index), math.prod(shape))
        start = 0
        for response in self.responses:
            inside = (index >= start) & (index < start + len(response))
            if bool(inside.all()):
                parts = response.shares(index - start)
            elif bool(inside.any()):
                parts[inside] = response.shares(index[inside] - start).to(parts.dtype)
            start += len(response)
        parts = parts.reshape(len(index), *shape)
        return parts if like.ndim > 1 else parts[0]

    def selected(self, apply: Callable[[Tensor], Any], like: Tensor) -> Any:
        """Of a rearrangement of the result; a tuple if it has several outputs."""
        origin = self.origin.selected(apply, like)
        if isinstance(origin, Origin):
            return Attribution(self.responses, origin)
        return tuple(Attribution(self.responses, part) for part in origin)

    def converted(self, convert: Callable[[Tensor], Tensor], like: Tensor) -> Attribution:
        """In another dtype or on the device of ``like``."""
        responses = tuple(response.converted(convert) for response in self.responses)
        return Attribution(responses, self.origin.to(like))

    @classmethod
    def joined(
        cls, build: Callable[..., Tensor], operands: Sequence[tuple[Attribution, Tensor]]
    ) -> Attribution:
        """Of several results put together, each with a tensor of its shape."""
        responses, origin = Origin.joined(
            build, [(own.origin, own.responses, like) for own, like in operands]
        )
        return cls(tuple(responses), origin)

    def compact(self) -> Attribution:
        """The same without the lines that no output is of."""
        if self.origin.index is None:
            return self
        sizes = [(len(response.rows), response.outputs) for response in self.responses]
        used, origin = self.origin.compact(sizes)
        responses = [r.compact(lines) for r, lines in zip(self.responses, used, strict=True)]
        kept = [response for response in responses if len(response)]
        return Attribution(tuple(kept or responses[:1]), origin)  # one has the inputs' shape
