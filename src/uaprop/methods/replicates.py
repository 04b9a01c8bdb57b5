"""Mean, covariance and their standard errors from a few independent replicates of many samples each."""

from __future__ import annotations

import torch
from torch import Tensor

from ..provenance import StandardError
from .accumulate import Accumulator
from .pooling import Moderated, moderated, squared_overlaps

__all__ = ["ReplicateAccumulator", "pooled_squares"]


class ReplicateAccumulator(Accumulator):
    """Takes in the samples of one replicate after the other, any number of them at a time.

    With ``d`` the sample minus a pivot, every replicate has the averages ``u`` of ``d`` and ``q`` of ``d²``,
    as a group of :class:`~uaprop.methods.accumulate.Accumulator` has: samples in a replicate depend on each
    other, replicates do not (L'Ecuyer & Lemieux 2002). The mean is ``pivot + ū``, and
    ``q̄ - ū² + s_u²/R`` estimates the variance without bias if every single sample has the right distribution.
    The standard errors come from the ``R - 1`` degrees of freedom of ``u`` and of ``q - 2 ū u``.

    Args:
        size: samples in a replicate.
    """

    def __init__(self, size: int) -> None:
        super().__init__(group=size)
        self._sums: list[tuple[Tensor, Tensor]] = []
        self._missing = 0  # samples of the last replicate

    def _take(self, offsets: Tensor) -> None:
        self._keep(offsets)
        while len(offsets):
            if self._missing == 0:
                self._sums.append((torch.zeros_like(offsets[0]), torch.zeros_like(offsets[0])))
                self._missing = self.group
            part, offsets = offsets[: self._missing], offsets[self._missing :]
            u, q = self._sums[-1]
            u += part.sum(0)
            q += part.square().sum(0)
            self._missing -= len(part)
        self.count = len(self._sums)

    def _replicates(self) -> tuple[Tensor, Tensor]:
        """``u`` and ``q``, ``(replicates, …)``."""
        u, q = (torch.stack(sums) / self.group for sums in zip(*self._sums, strict=True))
        return u, q

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """``ū``, the variance of ``u`` and ``q̄ - ū²``."""
        u, q = self._replicates()
        mean = u.mean(0)
        return mean, (u - mean).square().mean(0), (q.mean(0) - mean.square()).clamp_min(0)

    def _error(
        self, u: Tensor, mean_var: Tensor, var: Tensor, found: Moderated | None
    ) -> StandardError:
        """As of groups, with the means' error that so few of them tell."""
        means, _ = self._replicates()
        return super()._error(u, squared_errors(means, var), var, found)

    def _spread(self, u: Tensor) -> Tensor:
        """The variance of ``q - 2 ū u`` that makes the error of its average what so few tell."""
        _, of_groups, second = self.moments()
        means, squares = self._replicates()
        freedom = self.count - 1
        return freedom * squared_errors(squares - 2 * u * means, second + of_groups / freedom)

    def _covariance(self, u: Tensor, correction: float) -> Tensor:
        means, _ = self._replicates()
        flat = means.flatten(2) if means.ndim > 2 else means.reshape(len(means), -1)
        self.group_products = torch.einsum("n...i,n...j->...ij", flat, flat)
        return super()._covariance(u, correction)


def squared_errors(values: Tensor, var: Tensor) -> Tensor:
    """The squared standard errors of averages over a few independent replicates.

    The plain estimate is ``s²/R`` with ``d = R - 1`` degrees of freedom: so few that the outputs of an item,
    each relative to its own variance, are shrunk towards what they have in common
    (:func:`~uaprop.methods.pooling.moderated`). With ``ν`` degrees of freedom an average's error over its
    standard error has Student's distribution, of variance ``ν/(ν - 2)``, by which the squares are widened.
    Of the relative variance ``2/d`` of an estimate shrinking leaves a part ``p``: ``2/ν = p 2/d``.

    Args:
        values: ``(replicates, …)``, four at least.
        var: the outputs' variances.

    Returns:
        Shaped like the variances.
    """
    return pooled_squares(values - values.mean(0), var)


def pooled_squares(away: Tensor, var: Tensor) -> Tensor:
    """:func:`squared_errors` of what values are away from their average.

    Args:
        away: ``(replicates, …)``.
        var: the outputs' variances.

    Returns:
        Shaped like the variances.
    """
    freedom = len(away) - 1
    square = away.square().sum(0) / (freedom * len(away))
    rows = away.flatten(2) if away.ndim > 2 else away.reshape(len(away), 1, -1)
    rows = rows.transpose(0, 1)
    unit = (rows * rows.square().sum(1, keepdim=True).rsqrt()).nan_to_num(0, 0, 0)
    squares = squared_overlaps(unit)
    relative = torch.where(var > 0, square / var, 0).reshape(rows.shape[0], rows.shape[2])
    found = moderated(relative, squares, freedom)
    left, _ = found.left()
    widened = found.scale.square() / (1 - 2 / freedom * left)
    return square * widened.reshape(square.shape)
