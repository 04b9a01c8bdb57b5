"""What the nonlinear parts of ``f(x)`` and ``g(y)`` have in common, for jointly Gaussian ``x`` and ``y``.

By Stein's lemma ``f(x) = E[f] + gain (x - m) + r`` with a *residual* ``r`` that is uncorrelated with every
Gaussian, so ``Cov(f(x), g(y)) = gain_x gain_y c + Cov(r_x, r_y)`` with ``c = Cov(x, y)``. The second term:

* for piecewise linear functions, whose slope jumps by ``Δ_k`` at ``t_k``, exactly. Price's theorem (1958)
  says ``∂²/∂c² E[f g] = E[f'' g'']``, here a sum of bivariate densities, so
  ``Cov(r_x, r_y) = Σ Δ_k Δ_l ∫₀ᶜ (c - c') φ₂(t_k - m_x, t_l - m_y; c') dc'``;
* for any other function by its Hermite expansion (Mehler 1866), ``Σ_{n≥2} a_n b_n ρⁿ`` with
  ``a_n = E[f(x) h_n(z)]`` and orthonormal ``h_n``; what is left of the variance after the last order is
  put at the next two.

All of these are positive semi-definite matrices, jointly for any number of functions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .lazy import lazy
from .moments import Moments, root, standard
from .normal import pdf
from .quadrature import hermite, legendre, tensors

__all__ = ["Residual", "correlation", "kink_overlap", "residual_covariance"]

_ORDER = 24  # the last term of the Hermite expansion
_NODES = hermite(64)
_CHUNK = 2**13  # pairs of elements
# For each dtype: the rule, and where the integrals over s below are cut off.
_RULES = {torch.float64: (legendre(28), 14.0, 40.0), torch.float32: (legendre(14), 7.0, 20.0)}
_STRETCH = 1.5


class Residual:
    """``r = f(x) - E[f] - gain (x - m)`` of a scalar function, for every element of a tensor.

    Args:
        mean: means of ``x``, of any shape.
        var: variances of ``x``.
        moments: moments of ``f(x)``.
        function: ``f``, known by its moments for any mean and variance.
        kinks: where the slope of ``f`` jumps and by how much, if ``f`` is piecewise linear; numbers
            or tensors that broadcast to the shape.

    Attributes:
        kinks: deviations from the kinks to the mean, and jumps times deviation; vectors.
        scale: what the integral or the expansion is to be multiplied by, None for 1.
        rest: roots of what odd and even orders beyond the last lack, None for 0.
    """

    def __init__(
        self,
        mean: Tensor,
        var: Tensor,
        moments: Moments,
        function: Callable[[Tensor, Tensor], Moments],
        kinks: Sequence[tuple[float | Tensor, float | Tensor]] = (),
    ) -> None:
        std = root(var)
        self.kinks = [
            (standard(mean - place, var)[1].reshape(-1), (jump * std).reshape(-1))
            for place, jump in kinks
        ]
        self.scale: Tensor | None = None
        self.rest: tuple[Tensor, Tensor] | None = None
        self._given: Tensor | None = None
        if len(kinks) == 1:
            return  # one integral, of positive terms: nothing to mend
        plain = self._of_kinks() if kinks else _projections(mean, var, moments, function)
        total = self._own_variance() if kinks else plain.square().sum(0)
        # The moments know the variance best: no more than it, and what is missing is added.
        wanted = (moments.var - moments.gain * (moments.gain * var)).reshape(-1)
        known = wanted > 8 * torch.finfo(var.dtype).eps * moments.var.reshape(-1)
        wanted = torch.where(known, wanted, 0)
        share = _ratio(wanted, total, 0.0).clamp_max(1)
        missing = (wanted - share * total).clamp_min(0)
        odd, even = (plain[start::2].square().sum(0) for start in (-8, -7))  # of the last orders
        odd = _ratio(odd, odd + even, 0.5)
        self.scale = root(share)
        self._given = plain * self.scale
        self.rest = root(missing * odd), root(missing * (1 - odd))

    @lazy
    def coefficients(self) -> Tensor:
        """``a_2, a_3, …`` of the expansion, ``(orders, elements)``."""
        return self._of_kinks() if self._given is None else self._given

    def _of_kinks(self) -> Tensor:
        """``a_n = Δσ φ(u) h_{n-2}(u)/√(n(n-1))``, summed over the kinks."""
        orders = torch.arange(2, _ORDER + 1, device="cpu")
        norms = (orders * (orders - 1)).to(self.kinks[0][0]).rsqrt().unsqueeze(-1)
        far = 30.0  # where the density has vanished, and the powers not yet overflown
        terms = [
            norms * _polynomials(-z.clamp(-far, far)) * (pdf(z) * size) for z, size in self.kinks
        ]
        return torch.stack(terms).sum(0)

    def _own_variance(self) -> Tensor:
        one = torch.ones_like(self.kinks[0][0])
        terms = [a * b * kink_overlap(u, w, one) for u, a in self.kinks for w, b in self.kinks]
        return torch.stack(terms).sum(0).clamp_min(0)


def _ratio(part: Tensor, whole: Tensor, otherwise: float) -> Tensor:
    positive = whole > 0
    return torch.where(positive, part / torch.where(positive, whole, 1), otherwise)


def residual_covariance(first: Residual, second: Residual, rho: Tensor) -> Tensor:
    """``Cov(r_i, r_j)`` for every element ``i`` of the first and ``j`` of the second.

    Args:
        first: residuals of one tensor.
        second: of another, or the same object.
        rho: correlations of their inputs, ``(elements of first, elements of second)``.

    Returns:
        A tensor of ``rho``'s shape.
    """
    if first.kinks and second.kinks:
        result = _kinked(first, second, rho)
        if first.scale is not None:
            result = result * first.scale.unsqueeze(1)
        if second.scale is not None:
            result = result * second.scale
    else:
        power, result = rho, torch.zeros_like(rho)
        for a, b in zip(first.coefficients, second.coefficients, strict=True):
            power = power * rho
            result = torch.addcmul(result, a.unsqueeze(1) * b, power)
    if first.rest is not None and second.rest is not None:
        for n, a, b in zip((_ORDER + 1, _ORDER + 2), first.rest, second.rest, strict=True):
            result = torch.addcmul(result, a.unsqueeze(1) * b, rho**n)
    return result


def correlation(cov: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``c / (σ_i σ_j)`` within [-1, 1], zero where a variance is; ``cov`` is ``(n, m)``."""
    rows, columns = (torch.where(v > 0, v, torch.inf).rsqrt() for v in (first, second))
    return (cov * rows.unsqueeze(1) * columns).clamp(-1, 1)


def _kinked(first: Residual, second: Residual, rho: Tensor) -> Tensor:
    """The sum over pairs of kinks, computed where there is any correlation and once for each pair."""
    related = rho.triu() if first is second else rho
    i, j = related.detach().nonzero(as_tuple=True)
    values = rho[i, j]
    total = torch.zeros_like(values)
    for z, size in first.kinks:
        for w, other in second.kinks:
            total = total + size[i] * other[j] * kink_overlap(z[i], w[j], values)
    result = torch.zeros_like(rho).index_put((i, j), total)
    return result + result.triu(1).mT if first is second else result


def kink_overlap(z: Tensor, w: Tensor, rho: Tensor) -> Tensor:
    """``∫₀^ρ (ρ - r) φ₂(z, w; r) dr`` with the standard bivariate density; vectors of one length.

    It is the residual covariance of two ReLUs of variance 1 with kinks ``z`` and ``w`` away from their means.
    With ``r = tanh s``, ``A = (z - w)²/8`` and ``B = (z + w)²/8`` it is
    ``∫ (ρ - tanh s) sech(s) exp(-A(1 + e^{2s}) - B(1 + e^{-2s})) ds/2π``, all positive, and smooth on the
    scale of 1 for any correlation, ±1 included. A negative correlation of ``z`` and ``w`` is a positive one
    of ``z`` and ``-w``.

    Returns:
        A vector.
    """
    pieces = zip(z.split(_CHUNK), w.split(_CHUNK), rho.split(_CHUNK), strict=True)
    return torch.cat([_overlap(*piece) for piece in pieces])


def _overlap(z: Tensor, w: Tensor, rho: Tensor) -> Tensor:
    rule, farthest, negligible = _RULES[rho.dtype]
    nodes, weights = tensors(rule, rho)
    negative = rho < 0
    rho, w = torch.where(negative, -rho, rho), torch.where(negative, -w, w)
    near, far = (z - w).square() / 8, (z + w).square() / 8
    with torch.no_grad():  # the integrand is zero at the end, so the end has no derivative
        end = torch.atanh(rho.clamp_max(1)).clamp_max(farthest)
        tiny = torch.finfo(rho.dtype).tiny
        end = torch.minimum(end, 0.5 * torch.log1p(negligible / near.clamp_min(tiny)))
        way = torch.asinh(end / _STRETCH).unsqueeze(
            -1
        )  # more nodes towards zero, where it is large
        s = _STRETCH * torch.sinh(way * nodes)
        step = _STRETCH * way * torch.cosh(way * nodes) * weights
        growth = torch.exp(2 * s)
        step = step / torch.cosh(s) / (2 * math.pi)
        tanh = torch.tanh(s)
    density = torch.exp(
        torch.addcmul(-near.unsqueeze(-1) * (1 + growth), -far.unsqueeze(-1), 1 + 1 / growth)
    )
    return ((rho.unsqueeze(-1) - tanh) * density * step).sum(-1)


def _polynomials(z: Tensor) -> Tensor:
    """Orthonormal Hermite polynomials of orders 0 to ``_ORDER - 2``, stacked."""
    values = [torch.ones_like(z), z]
    for n in range(1, _ORDER - 2):
        values.append((z * values[n] - math.sqrt(n) * values[n - 1]) / math.sqrt(n + 1))
    return torch.stack(values)


def _projections(
    mean: Tensor, var: Tensor, moments: Moments, function: Callable[[Tensor, Tensor], Moments]
) -> Tensor:
    """``a_n = E[f(x) h_n(z)]`` for the orders from 2, ``(orders, elements)``.

    ``z = (u + u')/√2``, and the mean over ``u'`` is what the moments give at half the variance, however rough
    ``f`` is: ``a_n = 2^{n/2} E[F(u) h_n(u)]`` with a smooth ``F``, by Gauss-Hermite quadrature.

    Returns:
        The coefficients, zero where they overflow.
    """
    nodes = tensors(_NODES, mean)[0].view(-1, *[1] * mean.ndim)
    offsets = root(var / 2) * nodes
    values = function(mean + offsets, (var / 2).expand_as(offsets)).mean
    values = values - (
        moments.mean + moments.gain * offsets
    )  # takes no part, and most of the digits
    table = torch.tensor(_projection_table(), dtype=mean.dtype, device=mean.device)
    coefficients = table @ values.reshape(len(nodes), mean.numel())
    return torch.nan_to_num(coefficients, nan=0.0, posinf=0.0, neginf=0.0)


@functools.cache
def _projection_table() -> list[list[float]]:
    """``2^{n/2} w_q h_n(u_q)`` for every order ``n`` and node ``u_q``."""
    rows: list[list[float]] = [[] for _ in range(_ORDER + 1)]
    for node, weight in _NODES:
        values = [1.0, node]
        for n in range(1, _ORDER):
            values.append((node * values[n] - math.sqrt(n) * values[n - 1]) / math.sqrt(n + 1))
        for n, value in enumerate(values):
            rows[n].append(2 ** (n / 2) * weight * value)
    return rows[2:]
