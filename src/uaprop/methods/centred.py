"""Samples whose noise has the mean zero, block by block, and what their blocks tell of the mean's error.

What is linear in the noise then cancels in the average output, of every block and so of all. How far the
averages of the blocks lie apart is due to the rest alone, and says how large the error of the mean is, which
the variance of single samples does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..gaussian import Gaussian
from ..numerics.chance import RandomNumbers
from ..provenance import StandardError
from .accumulate import Accumulator
from .pooling import Moderated
from .replicates import pooled_squares

__all__ = ["CentredAccumulator", "blocks", "centred", "centred_noise", "parts"]

_FEWEST = 16  # samples, for more than one block
_SIZES = ((128, 8), (_FEWEST, 4), (0, 1))  # how many blocks, from so many samples on


def blocks(samples: int) -> list[int]:
    """The sizes of the blocks of so many samples: of each one sample is spent on its mean."""
    count = next(count for least, count in _SIZES if samples >= least)
    return parts(samples, count)


def parts(samples: int, count: int) -> list[int]:
    """So many samples in as many parts of much the same size."""
    return [samples // count + (i < samples % count) for i in range(count)]


def centred(noise: Tensor) -> Tensor:
    """Noise ``(samples, …)`` shifted to have the mean exactly zero, with the same expected covariance."""
    count = len(noise)
    return (noise - noise.mean(0)).mul_((count / (count - 1)) ** 0.5)


@torch.no_grad()
def centred_noise(
    inputs: Sequence[Gaussian],
    sizes: Sequence[int],
    seed: int,
    items: bool = False,
    keys: Sequence[int] | None = None,
) -> list[Tensor]:
    """Noise of every input in blocks that have the mean zero each, ``(samples, *shape)``.

    Each block has random numbers of its own: items that get the same ones, in another order, have the same
    ones in each block.

    Args:
        inputs: what to sample.
        sizes: of the blocks.
        seed: makes the noise reproducible.
        items: whether items of the batch get the same noise.
        keys: a key for each item instead.

    Returns:
        A stack for each.
    """
    stacks = []
    for number, x in enumerate(inputs):
        numbers = RandomNumbers.seeded(seed, number, items=items, keys=keys, device=x.device)
        parts = [centred(x.cov.deviations(size, numbers)) for size in sizes]
        stacks.append(parts[0] if len(parts) == 1 else torch.cat(parts))
    return stacks


class CentredAccumulator(Accumulator):
    """Takes in samples of several blocks, one block after the other.

    With ``m_b`` the average of block ``b`` of ``s_b`` samples, the mean ``m`` of all ``n`` has the squared
    error ``σ²/n``, where ``σ² = Σ s_b (m_b - m)²/(B - 1)``.

    Args:
        sizes: of the blocks, two at least.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self._sizes = list(sizes)
        self._sums: list[Tensor] = []
        self._room = 0  # for samples of the last block

    @property
    def freedom(self) -> int:
        """The degrees of freedom of a variance."""
        return self.count - len(self._sizes)

    def _take(self, offsets: Tensor) -> None:
        super()._take(offsets)
        while len(offsets):
            if self._room == 0:
                self._room = self._sizes[len(self._sums)]
                self._sums.append(torch.zeros_like(offsets[0]))
            part, offsets = offsets[: self._room], offsets[self._room :]
            self._sums[-1] += part.sum(0)
            self._room -= len(part)

    def _apart(self, u: Tensor) -> Tensor:
        """``m_b - m``, weighted so that their squares add up to ``B (B - 1) σ²/n``, ``(blocks, …)``."""
        return torch.stack(
            [
                (total / size - u) * (size * len(self._sizes) / self.count) ** 0.5
                for total, size in zip(self._sums, self._sizes, strict=True)
            ]
        )

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """``ū``, ``n - 1`` times the squared error of the mean, and ``q̄ - ū²``."""
        u, _, second = super().moments()
        count = len(self._sizes)
        error = self._apart(u).square().sum(0) / (count * (count - 1))
        return u, error * (self.count - 1), second

    def _error(
        self, u: Tensor, mean_var: Tensor, var: Tensor, found: Moderated | None
    ) -> StandardError:
        """As of single samples, with the means' error that so few blocks tell."""
        return super()._error(u, pooled_squares(self._apart(u), var), var, found)

    def _covariance(self, u: Tensor, correction: float) -> Tensor:
        dense = super()._covariance(u, 0.0)
        apart = self._apart(self._sums_like(u))
        flat = apart.flatten(2) if apart.ndim > 2 else apart.reshape(len(apart), -1)
        count = len(self._sizes)
        return dense + torch.einsum("n...i,n...j->...ij", flat, flat) / (count * (count - 1))

    def _sums_like(self, u: Tensor) -> Tensor:
        return u.reshape(self._sums[0].shape)
