"""Replicates of quasi-random samples with the part that is linear in the noise as a control variate.

With few noise sources the linear part can be read off the samples: ``J``, the least squares coefficients of
the outputs on the noise, which by Stein's lemma are the averaged derivative. The average of ``(J ε)²`` over
all noise is known exactly, ``J Σ Jᵀ``, so that its error in the samples can be taken off that of the variance
(a control variate with coefficient 1; Owen, *Monte Carlo theory, methods and examples*, section 8.9). A
linear map is then exact. ``J`` also tells what each source causes of the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..gaussian import Gaussian
from ..provenance import Provenance
from .answer import shares
from .linear_part import LinearPart
from .replicates import ReplicateAccumulator

__all__ = ["RegressedReplicates", "can_regress"]

_MOST_SOURCES = 64  # elements of an item's input
_SAMPLES_EACH, _FEWEST = 16, 256  # for each of them, and in all, at least
_ELEMENTS = 2**22  # of the coefficients of all outputs


def can_regress(samples: int, elements: int) -> bool:
    """Whether so many samples tell the linear part of so many elements."""
    return 0 < elements <= _MOST_SOURCES and samples >= max(_FEWEST, _SAMPLES_EACH * elements)


class RegressedReplicates(ReplicateAccumulator):
    """Takes in outputs together with the noise that they are of.

    Every replicate has the averages ``u`` and ``q`` of ``d`` and ``d²``. With ``d = a + J ε + r`` and the
    averages ``ε̄`` of the noise and ``S`` of ``ε εᵀ``, in their place go ``u′ = u - J ε̄`` and
    ``q - 2 u′ J ε̄ - J S Jᵀ + J Σ Jᵀ``.

    Args:
        size: samples in a replicate.
        inputs: the noisy inputs.
        batch: their number of items, if these do not influence each other; else None.
    """

    def __init__(self, size: int, inputs: Sequence[Gaussian], batch: int | None) -> None:
        super().__init__(size)
        self._inputs, self._batch = inputs, batch
        self._lines = 0  # that the outputs have; 0 if they are not regressed
        self._together = False  # whether they are not those of an item each
        self._noise = self._crossed = torch.zeros((), device="cpu")
        self._of_noise: list[tuple[Tensor, Tensor]] = []  # sums of ε and ε εᵀ of every replicate
        self._room = 0  # in the last of them

    def add_with_noise(self, outputs: Any, noise: Sequence[Tensor]) -> None:
        """Take in outputs and the noise of every input that they are of, ``(samples, *shape)`` each."""
        if isinstance(outputs, Tensor) and outputs.is_floating_point():
            if self.count == 0:
                self._lines = self._find_lines(outputs)
            if self._lines:
                flat = [each.reshape(len(each), self._lines, -1).double() for each in noise]
                self._noise = torch.cat(flat, 2)
        self.add(outputs)

    def _find_lines(self, outputs: Tensor) -> int:
        """An output's item, or all of the batch, that it may depend on; 0 if that is too much."""
        of_items = outputs.ndim > 2 and outputs.shape[1] == self._batch
        lines = self._batch if of_items and self._batch else 1
        self._together = not of_items
        elements = sum(x.numel() for x in self._inputs) // lines
        small = elements <= _MOST_SOURCES and outputs[0].numel() * elements <= _ELEMENTS
        return lines if small else 0

    def _take(self, offsets: Tensor) -> None:
        super()._take(offsets)
        if not self._lines:
            return
        noise, flat = self._noise, offsets.reshape(len(offsets), self._lines, -1)
        self._crossed = self._crossed + torch.einsum("nlk,nle->lke", flat, noise)
        while len(noise):
            if self._room == 0:
                zeros = torch.zeros_like(noise[0])
                self._of_noise.append((zeros, zeros.unsqueeze(2) * zeros.unsqueeze(1)))
                self._room = self.group
            now, noise = noise[: self._room], noise[self._room :]
            total, squares = self._of_noise[-1]
            total += now.sum(0)
            squares += torch.einsum("nle,nlf->lef", now, now)
            self._room -= len(now)

    @cached_property
    def _part(self) -> LinearPart:
        """``J``, for every input."""
        count = len(self._sums) * self.group
        averages, squares = (
            torch.stack(each).sum(0) / count for each in zip(*self._of_noise, strict=True)
        )
        outputs = (
            torch.stack([each for each, _ in self._sums]).sum(0).reshape(self._lines, -1, 1) / count
        )
        crossed = self._crossed / count - outputs * averages.unsqueeze(1)
        squares = squares - averages.unsqueeze(2) * averages.unsqueeze(1)
        found = crossed @ torch.linalg.pinv(squares, hermitian=True)
        sizes = [x.numel() // self._lines for x in self._inputs]
        rows = tuple(
            part.to(torch.promote_types(x.cov.var.dtype, torch.float32))
            for part, x in zip(found.split(sizes, 2), self._inputs, strict=True)
        )
        pushed = tuple(x.cov.times(row).detach() for x, row in zip(self._inputs, rows, strict=True))
        return LinearPart(rows, pushed)

    def _replicates(self) -> tuple[Tensor, Tensor]:
        u, q = super()._replicates()
        if not self._lines:
            return u, q
        linear = self._linear.reshape(u.shape)
        rows = torch.cat(self._part.rows, 2).double()
        squares = torch.stack([each for _, each in self._of_noise]) / self.group
        power = torch.einsum("lke,rlef,lkf->rlk", rows, squares, rows)
        change = self._part.variances().double() - power
        return u - linear, q + change.reshape(q.shape) - 2 * (u - linear) * linear

    @property
    def _linear(self) -> Tensor:
        """``J ε̄``, ``(replicates, lines, outputs)``."""
        rows = torch.cat(self._part.rows, 2).double()
        averages = torch.stack([each for each, _ in self._of_noise]) / self.group
        return torch.einsum("lke,rle->rlk", rows, averages)

    def _covariance(self, u: Tensor, correction: float) -> Tensor:
        if not self._lines or u.numel() == 0:
            return super()._covariance(u, correction)
        self._multiply()
        sampled, count = self.products, len(self._sums) * self.group
        assert sampled is not None
        rows = torch.cat(self._part.rows, 2).double()
        squares = torch.stack([each for _, each in self._of_noise]).sum(0)
        power = rows @ squares @ rows.mT
        linear = self._linear
        away = self._replicates()[0].reshape(linear.shape)
        mixed = self.group * torch.einsum("rlk,rlj->lkj", away, linear)
        change = count * self._part.covariance().double() - power - mixed - mixed.mT
        if sampled.ndim == 3 and len(change) == 1:  # of all items together: that of each is a block
            size = sampled.shape[1]
            change = change.reshape(len(sampled), size, len(sampled), size)
            change = change.diagonal(dim1=0, dim2=2).movedim(-1, 0)
        self.products = sampled + change.reshape(sampled.shape)
        try:
            return super()._covariance(u, correction)
        finally:
            self.products = sampled

    def result(self, told: Provenance, moderate: bool = False) -> Any:
        """The Gaussian of everything taken in, with its attribution.

        Of correlated noise there is none: its samples tell ``J`` where they lie, and not the part of each
        element.

        Returns:
            The Gaussian, or the constant.
        """
        value = super().result(told, moderate)
        if not isinstance(value, Gaussian) or not self._lines or value.provenance is None:
            return value
        if not all(x.cov.uncorrelated for x in self._inputs):
            return value
        parts = shares(self._part, [x.loc for x in self._inputs], self._together)
        return value.with_provenance(replace(value.provenance, shares=parts))
