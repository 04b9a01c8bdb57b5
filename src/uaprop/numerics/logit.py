"""The logit, ``log x - log(1 - x)``, of what lies between zero and one.

A Gaussian has some mass outside. Of the beta distribution of the same mean and variance, which has none, the
moments are exact, with ``n = m(1-m)/v - 1``, ``a = mn`` and ``b = (1-m)n``::

    E = ψ(a) - ψ(b)        Var = ψ′(a) + ψ′(b)        gain = Cov/v = (1 + 1/n)/(m(1-m))

With bounds ``ε`` and ``1 - ε`` the argument is clamped first, and every Gaussian has moments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .moments import Moments, piecewise, working_precision
from .smooth import Jet
from .substitution import Function, Variable, moments_of

__all__ = ["clamped_logit", "logit"]

_SMALL = 1e-6  # v/(m(1-m)) below which the first orders are enough, and the differences are not


@working_precision
def logit(mean: Tensor, var: Tensor) -> Moments:
    """Of the beta distribution of the same mean and variance."""
    small = var < _SMALL * (mean * (1 - mean)).detach()
    found = piecewise(
        small | (var == 0), _expansion, _beta, mean, var, safe=((0.5, 0.0), (0.5, 1e-2))
    )
    return found._replace(mean=torch.where(var > 0, found.mean, torch.logit(mean)))


def _expansion(mean: Tensor, var: Tensor) -> Moments:
    jet = _jet(mean)
    slope = jet.first
    return Moments(jet.value + 0.5 * var * jet.second, slope, var * slope.square())


def _beta(mean: Tensor, var: Tensor) -> Moments:
    product = mean * (1 - mean)
    count = (product / var - 1).clamp_min(1e-3)
    a, b = mean * count, (1 - mean) * count
    return Moments(
        torch.digamma(a) - torch.digamma(b),
        (1 + 1 / count) / product,
        torch.polygamma(1, a) + torch.polygamma(1, b),
    )


def _jet(x: Tensor) -> Jet:
    p, q = 1 / x, 1 / (1 - x)
    return Jet(torch.logit(x), p + q, q * q - p * p, 2 * (p**3 + q**3), 6 * (q**4 - p**4))


def clamped_logit(mean: Tensor, var: Tensor, eps: float) -> Moments:
    """``logit(min(max(x, ε), 1-ε))``; smooth in ``s`` with ``x = 1/(1 + e^{-s})``."""
    logistic = Variable(torch.logit, torch.sigmoid, lambda s: torch.sigmoid(s) * torch.sigmoid(-s))

    def value(x: Tensor) -> Tensor:
        return torch.logit(x, eps)

    def jet(x: Tensor) -> Jet:
        """Flat outside of the bounds."""
        inside = (x > eps) & (x < 1 - eps)
        found = _jet(torch.where(inside, x, 0.5))
        rest = (torch.where(inside, t, 0) for t in found[1:])
        return Jet(value(x), *rest)

    def scale(m: Tensor) -> Tensor:
        """Noise that reaches neither bound."""
        return 100 * torch.minimum((m - eps).abs(), (1 - eps - m).abs())

    def bounds(m: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(m, eps), torch.full_like(m, 1 - eps)

    function = Function(value, jet, logistic, scale, bounds, flat=True)
    return moments_of(function, mean, var)
