"""The linear response of a network to its input, all of it or the part that matters.

With few outputs there is a backward pass for each, and the response ``J`` is known row by row. With many,
a few directions are enough: outputs of one network vary together, so most of their variance lies in
the span of the first principal directions ``U`` of a stack of passes (outputs taken in units of their
own deviation). A backward pass for each gives ``G = Uᵀ J``. In the inner product of the noise,
``⟨a, b⟩ = aᵀ Σ b``, the response to the noise's projection onto the span of ``G`` is ``J̃ = A M⁻¹ G`` with
``M = G Σ Gᵀ`` and ``A = J Σ Gᵀ``; a forward derivative along each ``Σ G_j`` gives ``A``. With ``B Bᵀ = M⁻¹``
it is kept as ``A B`` times ``Bᵀ G``. Because it is a projection, ``J̃ ε`` and ``(J - J̃) ε`` are uncorrelated:
the covariance is ``A M⁻¹ Aᵀ`` plus that of the rest, which stays with whatever else is not explained. (A
randomised low-rank factorisation, Halko, Martinsson & Tropp 2011, in the noise's metric.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..gaussian import Gaussian
from ..numerics.chance import seeded
from ..numerics.lazy import lazy
from ..numerics.moments import HALF, root, widened
from .jacobian import both_ways, jacobian, mixes

__all__ = ["LinearPart", "main_directions", "orthonormal", "row_by_row"]


@dataclass(frozen=True)
class LinearPart:
    """``J = weights · rows``, and what it does to the noise.

    Attributes:
        rows: for every input ``(batch, directions, elements)``.
        pushed: ``rows · Σ``, of the same shapes.
        weights: ``(batch, outputs, directions)``; None if directions are the outputs themselves.
    """

    rows: tuple[Tensor, ...]
    pushed: tuple[Tensor, ...]
    weights: Tensor | None = None

    @lazy
    def gram(self) -> Tensor:
        """``rows Σ rowsᵀ``, ``(batch, directions, directions)``."""
        pairs = zip(self.pushed, self.rows, strict=True)
        return torch.stack([p @ r.mT for p, r in pairs]).sum(0)

    def covariance(self) -> Tensor:
        """``J Σ Jᵀ``, ``(batch, outputs, outputs)``."""
        if self.weights is None:
            return self.gram
        return self.weights @ self.gram @ self.weights.mT

    def variances(self) -> Tensor:
        """The diagonal of ``J Σ Jᵀ``, ``(batch, outputs)``."""
        if self.weights is None:
            return self.gram.diagonal(dim1=-2, dim2=-1)
        var = ((self.weights @ self.gram) * self.weights).sum(-1)
        return var.clamp_min(0)  # of directions that cancel, rounding is left

    def moved(self, stacks: Sequence[Tensor | None]) -> Tensor:
        """``rows · ε`` for stacks of noise of every input, ``(stack, batch, directions)``."""
        parts = [
            torch.einsum("bqn,rbn->rbq", row, s.reshape(len(s), len(row), row.shape[-1]))
            for row, s in zip(self.rows, stacks, strict=True)
            if s is not None
        ]
        return torch.stack(parts).sum(0)

    def response(self, stacks: Sequence[Tensor | None]) -> Tensor:
        """``J ε`` for stacks of noise of every input, ``(stack, batch, outputs)``."""
        moved = self.moved(stacks)
        return moved if self.weights is None else torch.einsum("bkq,rbq->rbk", self.weights, moved)

    def scaled(self, factors: Tensor) -> LinearPart:
        """``factors · J``, with a factor for each output, ``(batch, outputs)``."""
        factors = factors.to(self.rows[0].dtype).unsqueeze(-1)
        if self.weights is not None:
            return LinearPart(self.rows, self.pushed, factors * self.weights)
        return LinearPart(
            tuple(factors * row for row in self.rows),
            tuple(factors * push for push in self.pushed),
        )

    def added(self, weights: Tensor) -> LinearPart:
        """``J + weights · rows``, with weights ``(batch, outputs, directions)``; itself if they are zero."""
        if not bool(weights.any()):
            return self
        own = self.weights
        if own is None:
            own = torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
        return LinearPart(self.rows, self.pushed, own + weights)

    def finite(self) -> LinearPart | None:
        """The response without outputs whose derivative is infinite or NaN; None if all are finite."""
        tensors = (*self.rows, *self.pushed, *(() if self.weights is None else (self.weights,)))
        if all(bool(torch.isfinite(t).all()) for t in tensors):
            return None
        if self.weights is not None:  # directions mix the outputs, so all of them are lost
            rows, pushed = (tuple(map(torch.zeros_like, t)) for t in (self.rows, self.pushed))
            return LinearPart(rows, pushed, torch.zeros_like(self.weights))
        pairs = zip(self.rows, self.pushed, strict=True)
        known = [torch.isfinite(r + p).all(-1, keepdim=True) for r, p in pairs]
        both = torch.stack(known).all(0)
        rows, pushed = (
            tuple(torch.where(both, t, 0) for t in each) for each in (self.rows, self.pushed)
        )
        return LinearPart(rows, pushed)


def row_by_row(
    output: Tensor, inputs: Sequence[Tensor], gaussians: Sequence[Gaussian], rows: int
) -> LinearPart:
    """The whole response, by a backward pass for each output.

    Args:
        output: ``(batch, outputs)``, see :func:`~uaprop.methods.jacobian.jacobian`.
        inputs: the leaves of its graph.
        gaussians: the inputs' distributions.
        rows: outputs differentiated at once.

    Returns:
        The linear part.
    """
    found = [widened(row) for row in jacobian(output, inputs, rows)]
    pushed = [x.cov.times(row).detach() for x, row in zip(gaussians, found, strict=True)]
    return LinearPart(tuple(found), tuple(pushed))


def main_directions(
    output: Tensor,
    inputs: Sequence[Tensor],
    gaussians: Sequence[Gaussian],
    stack: Tensor,
    rank: int,
) -> LinearPart | None:
    """The response along random directions of the outputs, which find those in which it is large.

    Directions that the passes themselves vary in would be cheaper to come by, and wrong: the passes would
    look better explained than they are.

    Args:
        output: ``(batch, outputs)``.
        inputs: the leaves of its graph.
        gaussians: the inputs' distributions.
        stack: ``(stack, batch, outputs)``, what the outputs were in several passes: their scales.
        rank: how many directions.

    Returns:
        The linear part; None if batch elements influence each other.
    """
    scale = root((stack - stack.mean(0)).detach().square().mean(0))
    unit = torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1), 0)
    # the same for every batch element, so that it does not matter how many there are
    chance = torch.randn((rank, 1, output.shape[1]), generator=seeded(rank, 2), device="cpu").to(
        unit
    )
    cotangents = chance * unit
    if output.dtype in HALF:  # whose largest number is 65504
        cotangents = (cotangents / cotangents.abs().amax((0, 2), keepdim=True).clamp_min(1)).to(
            output
        )
    batch = len(output)
    grads, pushforward = both_ways(output, inputs, cotangents)
    if mixes(output, inputs, cotangents[0], [None if g is None else g[0] for g in grads]):
        return None
    rows = tuple(
        x.new_zeros(batch, len(cotangents), x.numel() // max(batch, 1))
        if grad is None
        else grad.reshape(len(cotangents), batch, x.numel() // max(batch, 1)).transpose(0, 1)
        for grad, x in zip(grads, inputs, strict=True)
    )
    rows = tuple(map(widened, rows))
    pushed = tuple(x.cov.times(row).detach() for x, row in zip(gaussians, rows, strict=True))
    moved = [
        p.transpose(0, 1).reshape(rank, *x.shape).to(x) for p, x in zip(pushed, inputs, strict=True)
    ]
    along = widened(pushforward(moved).movedim(0, -1))
    basis = orthonormal(rows, pushed)
    rows, pushed = (tuple(basis.mT @ each for each in stacks) for stacks in (rows, pushed))
    return LinearPart(rows, pushed, along @ basis)


def orthonormal(rows: Sequence[Tensor], pushed: Sequence[Tensor]) -> Tensor:
    """What makes directions orthonormal in the noise's metric.

    Random directions of outputs that vary together are nearly the same, so ``M`` is summed with twice the
    digits. A direction that is not above rounding is left out.

    Args:
        rows: ``G``, for every input ``(batch, directions, elements)``.
        pushed: ``G Σ``.

    Returns:
        ``B`` with ``Bᵀ M B = 1``, ``(batch, directions, directions)``; columns of what is left out are zero.
    """
    pairs = zip(pushed, rows, strict=True)
    gram = torch.stack([p.double() @ r.double().mT for p, r in pairs]).sum(0)
    values, vectors = torch.linalg.eigh(gram)
    least = values[..., -1:] * gram.shape[-1] * torch.finfo(rows[0].dtype).eps
    known = (values > least) & (values > 0)
    scale = torch.where(known, torch.where(known, values, 1).rsqrt(), 0)
    return (vectors * scale.unsqueeze(-2)).to(rows[0].dtype)
