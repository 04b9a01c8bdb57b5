"""The largest and the smallest absolute value of several independent Gaussians, by quadrature.

``T = max |xᵢ|`` has the distribution ``F(t) = Π P(|xᵢ| ≤ t)``, so ``E[T] = L + ∫ (1 - F)`` and
``E[(T-L)²] = 2 ∫ (t-L)(1 - F)`` over ``t > L``, if ``F(L) = 0``. For the smallest, ``S(t) = Π P(|xᵢ| > t)``
takes the place of ``1 - F``. An absolute value is far from Gaussian near zero: the maximum of Gaussians
with its mean and variance has a standard deviation a fifth too small, the minimum one twice too large.

What still rises at ``t > L = max(|mᵢ| - aσᵢ)`` began below ``L``, so it has ``σᵢ ≥ (t - L)/2a``: in ``y``
with ``t = L + s (e^y - 1)``, and ``s`` of the smallest standard deviation in play, nothing is steep. The
smallest is the same from the other end, ``H = min(|mᵢ| + aσᵢ)``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .maximum import Marginal
from .moments import root
from .quadrature import legendre, tensors

__all__ = ["largest_size", "smallest_size"]

_REACH = 7.0  # standard deviations
_RULE = legendre(64)
_BLOCK = 2**20  # values at a time


def largest_size(mean: Tensor, var: Tensor) -> Marginal:
    """Mean and variance of ``max |x|`` along the last dimension."""
    return _in_blocks(mean, var, True)


def smallest_size(mean: Tensor, var: Tensor) -> Marginal:
    """Mean and variance of ``min |x|`` along the last dimension."""
    return _in_blocks(mean, var, False)


def _in_blocks(mean: Tensor, var: Tensor, largest: bool) -> Marginal:
    count, shape = mean.shape[-1], mean.shape[:-1]
    mean, var = mean.reshape(-1, count), var.reshape(-1, count)
    rows = max(1, _BLOCK // max(1, count * len(_RULE)))
    if torch.compiler.is_compiling() or len(mean) <= rows:
        first, second = _moments(mean, var, largest)
    else:
        pairs = zip(mean.split(rows), var.split(rows), strict=True)
        parts = [_moments(m, v, largest) for m, v in pairs]
        first, second = (torch.cat(column) for column in zip(*parts, strict=True))
    return first.view(shape), second.view(shape)


def _moments(mean: Tensor, var: Tensor, largest: bool) -> Marginal:
    size, std = torch.where(mean < 0, -mean, mean), root(var)
    noisy = std > 0
    with torch.no_grad():  # at either end the integrand is zero or one
        low, high = (size - _REACH * std).clamp_min(0), size + _REACH * std
        if largest:
            start, end = low.amax(-1), high.amax(-1)
            playing = noisy & (high > start.unsqueeze(-1))
        else:
            start, end = low.amin(-1), high.amin(-1)
            playing = noisy & (low < end.unsqueeze(-1))
        unit = torch.where(playing, _REACH * std, math.inf).amin(-1)
        unit = torch.where(unit < math.inf, unit, 1)
        length = torch.log1p((end - start) / unit)
        nodes, weights = tensors(_RULE, mean)
        grown = length.unsqueeze(-1) * nodes
        along = unit.unsqueeze(-1) * torch.expm1(grown)  # from the end where it is steep
        step = unit.unsqueeze(-1) * torch.exp(grown) * length.unsqueeze(-1) * weights
        way = along if largest else (end - start).unsqueeze(-1) - along
        t = (start.unsqueeze(-1) + way).unsqueeze(-1)  # (rows, nodes, 1)
    scale = math.sqrt(0.5) / torch.where(noisy, std, 1)
    centre, scale = size.unsqueeze(-2), scale.unsqueeze(-2)
    right, left = (t - centre) * scale, (t + centre) * scale
    if largest:
        inside = 0.5 * (torch.erf(right) + torch.erf(left))
        sure = (t >= centre).to(mean.dtype)
    else:
        inside = 0.5 * (torch.erfc(right) + torch.erfc(left))
        sure = (t < centre).to(mean.dtype)
    tail = torch.where(noisy.unsqueeze(-2), inside, sure).prod(-1)
    tail = 1 - tail if largest else tail
    first = (tail * step).sum(-1)
    second = 2 * (tail * way * step).sum(-1)
    return start + first, (second - first.square()).clamp_min(0)
