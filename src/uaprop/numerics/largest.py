"""The largest of several independent Gaussians, by quadrature of its distribution.

``F(t) = Π Φ((t - mᵢ)/σᵢ)`` is known; mean and variance are integrals over it. Two observations make a few
nodes enough:

* ``F`` is zero below ``L = max(mᵢ - aσᵢ)`` and one above ``H = max(mᵢ + aσᵢ)``, with ``a`` some deviations.
  What still rises at ``t > L`` began below ``L``, so it has ``σᵢ ≥ (t - L)/2a``: in ``y`` with
  ``t = L + s (e^y - 1)`` and ``s`` the smallest deviation in play, nothing is steep.
* the probabilities of equal cells in ``y`` are differences of ``F``. Putting each at its cell's middle
  smears ``y`` over the cell's width ``h``, which multiplies ``E[e^{ky}]`` by ``sinh(kh/2)/(kh/2)``. Divided
  by that, the sum converges like the trapezoidal rule for a smooth density, that is, exponentially.

An element of a deviation below ``H - L`` by a factor of hundreds is a point mass; its own variance
counts where it wins, and the density that it cuts off is corrected for (Euler and Maclaurin).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .maximum import Marginal, larger
from .moments import root, untracked

__all__ = ["largest"]

_REACH = 5.0  # deviations
_NARROW = 2e-3  # of the whole interval, below which an element is a point
_FEW = 16  # elements whose maximum is not much narrower than they are
_NODES, _MORE_NODES = 20, 32
_NEGLIGIBLE = 1e-7  # probability
_BLOCK = 2**17  # values at a time
_NOWHERE = -1e30


def largest(mean: Tensor, var: Tensor) -> Marginal:
    """Mean and variance of the largest along the first dimension; exact for one and for two.

    Args:
        mean: ``(elements, …)``.
        var: of the same shape.

    Returns:
        Mean and variance without the first dimension.
    """
    count, shape = len(mean), mean.shape[1:]
    if count == 1:
        return mean[0], var[0]
    if count == 2:
        return larger((mean[0], var[0]), (mean[1], var[1]))
    mean, var = mean.reshape(count, -1), var.reshape(count, -1)
    columns = max(1, _BLOCK // _NODES)
    if not untracked(mean, var) or mean.shape[1] <= columns:
        found = _largest(mean, var)
    else:
        parts = zip(mean.split(columns, 1), var.split(columns, 1), strict=True)
        means, variances = zip(*(_largest(m, v) for m, v in parts), strict=True)
        found = torch.cat(means), torch.cat(variances)
    return found[0].view(shape), found[1].view(shape)


def _largest(mean: Tensor, var: Tensor) -> Marginal:
    with torch.no_grad():  # relative to it, nodes less than a small std apart are distinct
        highest = mean.amax(0)
        highest = torch.where(highest.isfinite(), highest, 0)
    first, second = _relative(mean - highest, var)
    return highest + first, second


def _relative(mean: Tensor, var: Tensor) -> Marginal:
    std = root(var)
    low, high = mean - _REACH * std, mean + _REACH * std
    start, top = low.amax(0), high.amax(0)
    point = std <= _NARROW * (top - start)
    lone = untracked(mean, var) and not bool(point.any())  # no points: less to do
    centre, scale, own = mean, std, torch.zeros_like(start)
    if not lone:
        winner, number = torch.where(point, mean, _NOWHERE).max(0)
        centre, scale = torch.where(point, _NOWHERE, mean), torch.where(point, 1, std)
        start = torch.maximum(torch.where(point, _NOWHERE, low).amax(0), winner)
        own = var.gather(0, number.unsqueeze(0)).squeeze(0) * (winner >= start)
        std, high = torch.where(point, math.inf, std), torch.where(point, _NOWHERE, high)
    end = torch.maximum(top, start)

    def distribution(t: Tensor) -> Tensor:
        return _product(t, centre, scale)

    def unit(start: Tensor) -> Tensor:
        """The smallest deviation of what still rises above the start."""
        least = torch.where(high > start, std, math.inf).amin(0)
        return torch.where(least < math.inf, _REACH * least, 1)

    nodes = _NODES
    if len(mean) > _FEW:
        start, end = _bracket(distribution, start, end, unit(start))
        nodes = _MORE_NODES
    held, first, second = _cells(distribution, start, end, unit(start), nodes)
    return first, (second + held * own).clamp_min(0)


def _grid(start: Tensor, end: Tensor, unit: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Equal steps in ``y``: their width, and ``e^y`` at the nodes, ``(count, …)``."""
    step = torch.log1p((end - start) / unit) / (count - 1)
    numbers = torch.arange(count, dtype=start.dtype, device=start.device).unsqueeze(-1)
    return step, torch.exp(step * numbers)


def _bracket(
    distribution: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, unit: Tensor
) -> tuple[Tensor, Tensor]:
    """The part of the interval where the maximum of many elements can be."""
    with torch.no_grad():
        t = start + unit * (_grid(start, end, unit, _NODES)[1] - 1)
        f = distribution(t)
    below = torch.where(f[1:] < _NEGLIGIBLE, t[1:], start).amax(0)
    above = torch.where(f[:-1] > 1 - _NEGLIGIBLE, t[:-1], end).amin(0)
    return below, above


def _cells(
    distribution: Callable[[Tensor], Tensor],
    start: Tensor,
    end: Tensor,
    unit: Tensor,
    count: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Probability at the start, mean and variance, from ``F`` at ``count`` nodes."""
    h, powers = _grid(start, end, unit, count)
    f = distribution(torch.addcmul(start - unit, unit, powers))
    p, last, beyond = f.diff(dim=0), powers[-1] - 1, 1 - f[-1]
    flat = h < 1e-4
    safe = torch.where(flat, 1, h)
    one = torch.where(flat, 1, safe / 2 / torch.sinh(safe / 2))
    two = torch.where(flat, 1, safe / torch.sinh(safe))
    # the density that the start cuts off, by a difference of third order
    cut = h * (-11 * f[0] + 18 * f[1] - 9 * f[2] + 2 * f[3]) / 72
    middle = powers[:-1] * (one * torch.exp(h / 2)) - 1
    mean = (p * middle).sum(0) + beyond * last - one * cut
    ratio = two / (one * one) - 1
    away = middle - mean
    var = (p * (away.square() + ratio * (middle + 1).square())).sum(0)
    var = var + f[0] * mean.square() + beyond * (last - mean).square()
    var = var - 2 * cut * (two - one * (mean + 1))
    return f[0], start + unit * mean, unit.square() * var


def _product(t: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """``Π Φ((t - mᵢ)/σᵢ)`` over the first dimension of mean and deviation, ``(nodes, …)``."""
    scale = math.sqrt(0.5) / std
    if untracked(t, mean, std) and mean.shape[1] * 8 > len(mean):
        total, buffer = torch.ones_like(t), torch.empty_like(t)
        for i, (m, s) in enumerate(zip(mean, scale, strict=True)):
            torch.addcmul(-m * s, t, s, out=buffer)
            total.addcmul_(total, buffer.erf_())
            if i % 16 == 15:
                total.mul_(0.5**16)
        return total.mul_(0.5 ** (len(mean) % 16))
    block = len(mean)
    if not torch.compiler.is_compiling():  # where memory is at stake, and sizes are known
        block = max(1, 16 * _BLOCK // max(1, t.numel()))
    total = torch.ones_like(t)
    for m, s in zip(mean.split(block), scale.split(block), strict=True):
        parts = 0.5 * (1 + torch.erf((t.unsqueeze(1) - m) * s))  # (nodes, elements, …)
        while parts.shape[1] > 1:
            half = parts.shape[1] // 2
            pairs = parts[:, :half] * parts[:, half : 2 * half]
            parts = pairs if 2 * half == parts.shape[1] else torch.cat([pairs, parts[:, -1:]], 1)
        total = total * parts[:, 0]
    return total
