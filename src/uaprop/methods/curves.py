"""What variances lack where the mean is large, and what a calibration makes of it.

A network's scores are sums over features. A large score is a sum of many that are active, and what is active
together shares noise. So the variances of independent elements lack more in large scores than in others, and
by how much is much the same for all of them: a curve over the mean.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

__all__ = ["KNOTS", "curve", "curved"]

KNOTS = 6
_FEWEST = 100  # elements that a curve can be told from
_EVIDENCE = 10  # elements at a knot that say as much as the belief that there is nothing
_CAUTION = 2  # the elements of one input are not independent: chance may do this much more
_MOST = 2**16  # elements that a curve is fitted to
_ENDS = (0.01, 0.99)  # the quantiles of the means that the knots lie between


def curve(mean: Tensor, lacking: Tensor) -> list[float]:
    """Fit what the logarithms of variances lack, by linear interpolation between knots.

    The knots lie at equal distances. Their values solve the least squares problem with a ridge, which
    draws them to zero where there are few elements. And all are drawn to zero by the share of the
    curve's squares that chance explains (James & Stein 1961).

    Args:
        mean: of elements, of any shape.
        lacking: of the same shape; not finite where it is unknown.

    Returns:
        Where the first and the last knot are, and the value at each.
    """
    none = [0.0] * (2 + KNOTS)
    step = 1 + mean.numel() // _MOST
    mean, lacking = (t.reshape(-1)[::step] for t in (mean, lacking))
    known = lacking.isfinite() & mean.isfinite()
    x, y = mean[known].double(), lacking[known].double()
    if len(x) < _FEWEST:
        return none
    low, high = (float(end) for end in x.quantile(x.new_tensor(_ENDS)))
    if not high > low:
        return none
    knots = torch.arange(KNOTS, dtype=x.dtype, device=x.device)
    basis = (1 - (_position(x, low, high).unsqueeze(1) - knots).abs()).clamp_min(0)
    ridge = _EVIDENCE * torch.eye(KNOTS, dtype=x.dtype, device=x.device)
    y = y - y.mean()
    values = torch.linalg.solve(basis.T @ basis + ridge, basis.T @ y)
    found = basis @ values
    chance = _CAUTION * KNOTS * float((y - found).square().mean())
    squares = float(found.square().sum())
    if squares <= chance:
        return none
    return [low, high, *(values * (1 - chance / squares)).tolist()]


def curved(factor: Tensor, mean: Tensor, low: float, high: float, *values: float) -> Tensor:
    """A factor times ``exp(curve(mean))``; level beyond the first and the last knot."""
    if not any(values):
        return factor
    place = _position(mean, low, high)
    rises = (after - before for before, after in itertools.pairwise(values))
    steps = [rise * (place - i).clamp(0, 1) for i, rise in enumerate(rises)]
    return factor * torch.exp(sum(steps, torch.full_like(mean, values[0])))


def _position(mean: Tensor, low: float, high: float) -> Tensor:
    """From 0 at the first knot to ``KNOTS - 1`` at the last."""
    return ((mean - low) * ((KNOTS - 1) / (high - low))).clamp(0, KNOTS - 1)
