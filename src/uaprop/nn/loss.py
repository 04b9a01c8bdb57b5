"""The expected binary cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..numerics.log_loss import expected_softplus
from ..numerics.report import softplus_mean
from .pairs import as_gaussian

__all__ = ["UABCELoss"]


class UABCELoss(nn.Module):
    """Expected binary cross-entropy of a random score ``x ~ N(m, v)`` *before* the sigmoid.

    ``ℓ(x) = (1-y) x + w softplus(-x)`` with ``w = 1 + (pos_weight - 1) y``, as in
    ``nn.BCEWithLogitsLoss``, so ``E[ℓ] = (1-y) m + w E[softplus(-x)]``: exact, or with the report's
    second-order expansion ``softplus(-m) + ½ s(m)(1-s(m)) v`` (both later signs of its equation
    (30) corrected, erratum 2), which is far off once the variance is large.

    Args:
        approximation: ``"exact"`` or ``"report"``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        pos_weight: weight of positive examples, broadcast against the target.

    Raises:
        ValueError: for any other approximation or reduction.
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        approximation: str = "exact",
        reduction: str = "mean",
        pos_weight: Tensor | float | None = None,
    ) -> None:
        super().__init__()
        if approximation not in ("exact", "report"):
            raise ValueError(f"approximation must be 'exact' or 'report', not {approximation!r}")
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
        self.approximation = approximation
        self.reduction = reduction
        weight = None if pos_weight is None else torch.as_tensor(pos_weight)
        self.register_buffer("pos_weight", weight)

    def forward(self, score: Any, target: Tensor) -> Tensor:
        """The expected loss of a score, a Gaussian or a pair ``(mean, var)``.

        Args:
            score: the score before the sigmoid.
            target: labels in [0, 1], of the score's shape.

        Returns:
            A scalar, or a tensor of the score's shape for ``reduction="none"``.

        Raises:
            TypeError: if the target is no tensor.
            ValueError: if the shapes differ.
        """
        x = as_gaussian(score)
        if not isinstance(target, Tensor):
            raise TypeError(f"the target must be a tensor, not {type(target).__name__}")
        if target.shape != x.shape:
            raise ValueError(
                f"target of shape {tuple(target.shape)} does not match the score's {tuple(x.shape)}"
            )
        mean, var = x.loc, x.cov.var
        target = target.to(mean.dtype)
        if self.approximation == "exact":
            log_loss = expected_softplus(-mean, var)
        else:
            log_loss = softplus_mean(-mean, var)
        if self.pos_weight is not None:
            log_loss = log_loss * (1 + (self.pos_weight - 1) * target)
        loss = (1 - target) * mean + log_loss
        if self.reduction == "mean":
            return loss.mean()
        return loss.sum() if self.reduction == "sum" else loss
