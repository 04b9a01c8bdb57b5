"""Mean, covariance and their standard errors from a stream of draws."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ..covariance import Finished
from ..covariance.base import per_batch_element
from ..errors import UnsupportedOperation
from ..gaussian import Gaussian
from ..numerics.moments import HALF
from ..provenance import Provenance, StandardError
from .error_floor import unrounded
from .pooling import Moderated, moderated, normal_error, squared_correlations, squared_overlaps

__all__ = ["Accumulator", "same"]

_DENSE_ELEMENTS = 2**22  # largest dense output covariance that is kept


class Accumulator:
    """Takes in draws in groups: single ones, or antithetic pairs. Sums in float64.

    With ``d`` the draw minus a pivot (the first draw, so that nothing large cancels), every group has the
    averages ``u`` of ``d`` and ``q`` of ``d²``. Groups are independent, so ``mean = pivot + ū`` has the error
    ``s_u/√n``, ``var = q̄ - ū² + s_u²/n`` is unbiased, and by the delta method its error is that of the
    average of ``q - 2 ū u``.

    Args:
        group: draws per group; they are next to each other.
        centred: whether the inputs' draws have the mean zero by construction. The average of what is linear
            is then no estimate but known, and the variance is not corrected for it.
    """

    def __init__(self, group: int = 1, centred: bool = False) -> None:
        self.group = group
        self.centred = centred
        self.count = 0
        self.constant: Any = None
        self.seen = False
        self.dtype = torch.float64
        self.pivot = self.u = self.q = self.uu = self.uq = self.qq = torch.zeros((), device="cpu")
        self.first: Tensor | None = None  # offsets of the only single draws so far, without sums
        self.products: Tensor | None = None
        self.group_products: Tensor | None = None
        self.waiting: list[Tensor] = []  # offsets that the products are still to be taken of

    def add(self, draws: Any) -> None:
        """Take in whole groups of draws, stacked along the first dimension.

        Raises:
            UnsupportedOperation: if they are something that has no mean, and is not always the same.
        """
        if not isinstance(draws, Tensor):
            if self.seen:
                same(self.constant, draws)
            self.constant, self.seen = draws, True
            return
        if not draws.is_floating_point():
            self._add_integers(draws)
            return
        values = draws.double()
        if self.count == 0:
            self.dtype, self.pivot = draws.dtype, values[0]
        offsets = values - self.pivot
        if not bool(torch.isfinite(self.pivot).all()):  # masked: always the same infinity
            offsets = torch.where(values == self.pivot, 0, offsets)
        self._take(offsets)

    def _take(self, offsets: Tensor) -> None:
        """Take in whole groups of samples, less the pivot."""
        if self.count == 0 and self.group == 1:
            self.count, self.first = len(offsets), offsets
            self._keep(offsets)
            return
        if self.first is not None:
            self._sum(self.first, self.first.square())
            self.first = None
        u, q = offsets, offsets.square()
        if self.group > 1:
            u, q = (each.unflatten(0, (-1, self.group)).mean(1) for each in (u, q))
        self.count += len(u)
        self._sum(u, q)
        if self._keep(offsets) and self.group > 1:
            self.group_products = _products(_per_draw(u), self.group_products)

    def _add_integers(self, draws: Tensor) -> None:
        """Integers, such as indices or lengths, which must not depend on the sample."""
        first = self.constant if self.seen else draws[0].clone()
        if draws.is_complex() or not bool((draws == first).all()):
            raise UnsupportedOperation(
                f"an output of {draws.dtype}",
                reason="it depends on the noise, and no Gaussian has such values",
                remedy="Return the scores that it was computed from.",
            )
        self.constant, self.seen = first, True

    def _sum(self, u: Tensor, q: Tensor) -> None:
        self.u, self.q = self.u + u.sum(0), self.q + q.sum(0)
        self.uu = self.uu + u.square().sum(0)
        self.uq = self.uq + (u * q).sum(0)
        self.qq = self.qq + q.square().sum(0)

    def _keep(self, offsets: Tensor) -> bool:
        """Keep draws for a dense covariance, unless that would be too large."""
        flat = _per_draw(offsets)
        elements = flat.shape[-1]
        if flat.shape[1:].numel() * elements > _DENSE_ELEMENTS:
            return False
        self.waiting.append(flat)
        if sum(map(len, self.waiting)) > elements:  # as large as the products
            self._multiply()
        return True

    def _multiply(self) -> None:
        for flat in self.waiting:
            self.products = _products(flat, self.products)
        self.waiting = []

    def result(self, told: Provenance, moderate: bool = False) -> Any:
        """The Gaussian of everything taken in, or the constant if it was no tensor.

        Args:
            told: the method and its options.
            moderate: whether to steady the variances; single draws only.

        Returns:
            A Gaussian with ``told`` and standard errors.
        """
        if self.count == 0:
            return self.constant
        n = self.count
        u, of_groups, second = self.moments()
        mean_var = of_groups / (n - 1)  # of the mean
        correction = 0.0 if self.centred else 1.0
        var = second.add(mean_var, alpha=correction)
        dense = found = None
        sampled = var
        if self.products is not None or self.waiting:
            centre = per_batch_element(u)
            if moderate:
                squares = self._squared_correlations(centre, correction) if n > 2 else None
                batch = len(centre) if centre.ndim > 1 else 1
                found = moderated(var.reshape(batch, centre.shape[-1]), squares, self.freedom)
                var = var * found.scale.reshape(var.shape).square()
            dense = partial(self._dense, centre, correction, None if found is None else found.scale)
        error = cache(
            partial(self._error, u, mean_var, sampled, found)
        )  # computed once, on first access
        value = Gaussian._from_covariance(
            (self.pivot + u).to(self.dtype), Finished(var.to(self._wide), dense)
        )
        return value.with_provenance(
            Provenance(told.method, told.options, told.reason, standard_error=error)
        )

    @property
    def freedom(self) -> int:
        """The degrees of freedom of a variance."""
        return self.count - 1

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """``ū``, the variance of ``u`` and ``q̄ - ū²``, averages over all groups."""
        if self.first is not None:
            u = self.first.mean(0)
            second = (self.first - u).square().mean(0)
            return u, second, second
        n = self.count
        u = self.u / n
        square = u.square()
        return u, (self.uu / n - square).clamp_min(0), (self.q / n - square).clamp_min(0)

    def _spread(self, u: Tensor) -> Tensor:
        """The variance of ``q - 2 ū u``, whose average is what the variance estimates, but for ``ū²``."""
        if self.first is not None:
            squares = (self.first - u).square()
            return (squares - squares.mean(0)).square().mean(0)
        n = self.count
        q, square = self.q / n, u.square()
        spread = self.qq / n - q.square() - 4 * u * (self.uq / n - u * q)
        return (spread + 4 * square * (self.uu / n - square)).clamp_min(0)

    def _error(
        self, u: Tensor, mean_var: Tensor, var: Tensor, found: Moderated | None
    ) -> StandardError:
        """The standard errors of the means and of the roots of ``var``, which may have been moderated."""
        n = self.count
        if n == 2 and self.group == 1:  # equally far from their mean: nothing to tell it by
            std_error = var.sqrt() * normal_error(1) ** 0.5
        else:
            least = torch.finfo(torch.float64).tiny
            std_error = (self._spread(u) / (4 * (n - 1)) / var.clamp_min(least)).sqrt()
        if found is not None:
            std_error = _steadied(var, std_error, found, self.freedom)
        error = StandardError(mean_var.sqrt().to(self._wide), std_error.to(self._wide))
        return unrounded(self.pivot + u, var, error, self.dtype)

    def _squared_correlations(self, u: Tensor, correction: float) -> Tensor:
        """The sum of them in each batch element, ``(batch,)``; of few draws without the covariance."""
        if self.products is not None:
            dense = self._covariance(u, correction)
            return squared_correlations(dense if dense.ndim == 3 else dense.unsqueeze(0))
        draws = torch.cat(self.waiting) - u if len(self.waiting) > 1 else self.waiting[0] - u
        draws = draws.movedim(0, -2) if draws.ndim == 3 else draws.unsqueeze(0)
        unit = draws * draws.square().sum(1, keepdim=True).rsqrt()
        unit = unit.nan_to_num_(0, 0, 0)  # what does not vary, or is no number, is not counted
        return squared_overlaps(unit)

    def _dense(self, u: Tensor, correction: float, scale: Tensor | None) -> Tensor:
        """The covariance, each deviation times its scale if there is one."""
        dense = self._covariance(u, correction)
        if scale is not None:
            factors = scale.reshape(dense.shape[:-1])
            dense = dense.mul_(factors.unsqueeze(-1)).mul_(factors.unsqueeze(-2))
        return dense.to(self._wide)

    @property
    def _wide(self) -> torch.dtype:
        """Of variances: half precision could not hold them."""
        return torch.float32 if self.dtype in HALF else self.dtype

    def _covariance(self, u: Tensor, correction: float) -> Tensor:
        """``d̄dᵀ - ū ūᵀ``, plus what ``ū ūᵀ`` is expected to be too large by: its own covariance."""
        self._multiply()
        assert self.products is not None
        n = self.count
        of_mean = correction / (n * (n - 1))
        share = 1 / (n * self.group) + (of_mean if self.group == 1 else 0.0)
        by_element, rows = self.products, u.unsqueeze(-1)
        if u.ndim == 1:
            by_element, rows = by_element.unsqueeze(0), rows.unsqueeze(0)
        dense = torch.baddbmm(by_element, rows, rows.mT, beta=share, alpha=-(1 + n * of_mean))
        dense = dense.view_as(self.products)
        return dense if self.group_products is None else dense + of_mean * self.group_products


def _steadied(var: Tensor, error: Tensor, found: Moderated, freedom: int) -> Tensor:
    """The errors of moderated variances' roots, from the variances as sampled and the errors of theirs.

    Errors estimated from few samples are rougher than the variances: a fourth moment of ``d`` normal samples
    has the relative variance ``(105 - 9)/9/d``. So their squares, relative ones, are shrunk towards the
    average of the item in that proportion as well, which is at least a normal output's.

    Returns:
        Shaped like the variances.
    """
    scale, (own, left) = found.scale, found.left()
    per_item, error = var.reshape(scale.shape), error.reshape(scale.shape)
    varies = per_item > 0
    relative = torch.where(varies, error.square() / per_item, 0)
    typical = relative.sum(1, keepdim=True) / varies.sum(1, keepdim=True).clamp_min(1)
    typical = typical.clamp_min(normal_error(freedom))
    weight = own * freedom / (freedom + 96 / 9)
    relative = left * (weight * relative + (1 - weight) * typical)
    return (scale * (per_item * relative).sqrt()).reshape(var.shape)


def _per_draw(draws: Tensor) -> Tensor:
    """``(draws, batch, elements)``, or ``(draws, elements)`` where an answer is a vector."""
    return draws.flatten(2) if draws.ndim > 2 else draws.reshape(len(draws), -1)


def _products(flat: Tensor, before: Tensor | None) -> Tensor:
    products = torch.einsum("n...i,n...j->...ij", flat, flat)
    return products if before is None else before + products


def same(first: Any, other: Any) -> None:
    """Whatever is no tensor must not depend on the draw: it would be one draw's value.

    Raises:
        UnsupportedOperation: if the two differ.
    """
    plain = isinstance(first, bool | int | float | str | bytes | torch.device | torch.dtype)
    if not (first is other or (plain and type(first) is type(other) and first == other)):
        raise UnsupportedOperation(
            f"an output that is a {type(first).__name__}",
            reason="it depends on the noise; only tensors, in tuples, lists and dicts, have a mean and a "
            "variance",
            remedy="Return a tensor.",
        )
