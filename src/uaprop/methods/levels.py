"""How far an input's variances have grown on the way, and what a calibration makes of it.

Correlated noise adds up more in some inputs than in others. Where it does, the variances of independent
elements tend to have grown more as well, so a power of their growth tells part of what they lack.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FEWEST", "Levels", "levelled", "slope"]

FEWEST = 4  # inputs that a slope can be told from


class Levels:
    """How large the variances of each input of the batch are, by the pass's first place."""

    def __init__(self) -> None:
        self.first: Tensor | None = None

    def of(self, var: Tensor) -> Tensor | None:
        """The logarithm of their average over that at the first place; None without a batch."""
        if var.ndim < 2:
            return None
        tiny = torch.finfo(var.dtype).tiny
        level = var.mean(tuple(range(1, var.ndim))).clamp_min(tiny).log()
        if self.first is None:
            self.first = level
        return level - self.first if level.shape == self.first.shape else None


def slope(level: Tensor, short: Tensor) -> float:
    """The slope of ``short`` over ``level``, less where chance could have made it.

    With the least squares slope ``b`` and its standard error ``e``, ``b (1 - e²/b²)``, or 0.

    Returns:
        The slope.
    """
    known = short.isfinite()
    level, short = level[known].double(), short[known].double()
    if len(level) < FEWEST:
        return 0.0
    x, y = level - level.mean(), short - short.mean()
    total = float(x.square().sum())
    if total <= 1e-6 * len(x):  # all alike
        return 0.0
    b = float((x * y).sum()) / total
    error = float((y - b * x).square().sum()) / (len(x) - 2) / total
    return b * max(0.0, 1 - error / b**2) if b else 0.0


def levelled(
    factor: Tensor,
    dims: int,
    level: Tensor | None,
    power: float,
    centre: float,
    low: float,
    high: float,
) -> Tensor:
    """A factor times ``exp(power (level - centre))``; no further than the levels fitted to.

    Args:
        factor: what broadcasts with variances ``(batch, …)``.
        dims: how many dimensions these have.
        level: for each input of the batch; None without a batch.
        power: the slope.
        centre: the average of the levels fitted to.
        low: the lowest of them.
        high: the highest of them.

    Returns:
        The factor; one for each input of the batch, if the power is not 0.
    """
    if level is None or power == 0:
        return factor
    scale = torch.exp(power * (level.clamp(low, high) - centre))
    return factor * scale.view(-1, *[1] * (dims - 1))
