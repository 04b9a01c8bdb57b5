"""How the probability that a Gaussian vector is positive changes with its mean and covariance.

For ``x ~ N(μ, R)`` and ``P = P(x ≥ 0)``, a shift of ``μ_j`` moves the edge of the integral (Plackett 1954):

    ∂P/∂μ_j = φ(0; μ_j, R_jj) P(others ≥ 0 | x_j = 0)
    ∂²P/∂μ_i∂μ_j = φ₂(0; μ_ij, R_ij) P(others ≥ 0 | x_i = x_j = 0),        i ≠ j

which are integrals of the same kind with one and two elements less. Differentiating the first once more,
through the conditional mean ``μ_i - R_ij μ_j/R_jj``, gives the diagonal,

    ∂²P/∂μ_j² = -(μ_j ∂P/∂μ_j + Σ_{i≠j} R_ij ∂²P/∂μ_i∂μ_j)/R_jj

and since the density solves the heat equation, ``dP = ½ Σ_ij ∂²P/∂μ_i∂μ_j dR_ij`` for a change of ``R``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .orthant import orthant_probability

__all__ = ["orthant_derivatives"]

_DETERMINED = 1e-12  # share of its variance below which an element follows from the others
_IN_FLIGHT = 2**21  # numbers held at a time


def orthant_derivatives(mean: Tensor, cov: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian of ``P(x ≥ 0)`` in the mean, for ``x ~ N(mean, cov)``.

    Args:
        mean: (problems, n), float64.
        cov: (problems, n, n), positive semi-definite; nothing depends on an element without variance.
        points: (count, at least n - 2), evenly spread in the unit cube.

    Returns:
        (problems, n) and (problems, n, n).
    """
    size = max(1, _IN_FLIGHT // mean.shape[1] ** 4)
    parts = [
        _derivatives(*part, points) for part in zip(mean.split(size), cov.split(size), strict=True)
    ]
    if not parts:
        return mean, cov
    gradients, hessians = zip(*parts, strict=True)
    return torch.cat(gradients), torch.cat(hessians)


def _derivatives(mean: Tensor, cov: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    n = mean.shape[1]
    device = mean.device
    var = cov.diagonal(dim1=-2, dim2=-1)
    random = var > 0
    gradient = _at_zero(mean, cov, torch.arange(n, device=device).unsqueeze(1), points)
    hessian = torch.zeros_like(cov)
    if n > 1:
        pairs = torch.combinations(torch.arange(n, device=device))
        first, second = pairs.unbind(1)
        mixed = _at_zero(mean, cov, pairs, points)
        hessian[:, first, second] = hessian[:, second, first] = mixed
    own = mean * gradient + (cov * hessian).sum(2)
    diagonal = torch.where(random, -own / torch.where(random, var, 1), 0)
    return gradient, hessian + torch.diag_embed(diagonal)


def _at_zero(mean: Tensor, cov: Tensor, chosen: Tensor, points: Tensor) -> Tensor:
    """The density of some elements at zero, times the probability that all others are positive there.

    Args:
        mean: (problems, n).
        cov: (problems, n, n).
        chosen: (choices, 1 or 2), which elements are at zero.
        points: evenly spread in the unit cube.

    Returns:
        (problems, choices).
    """
    n, (choices, count) = mean.shape[1], chosen.shape
    kept = torch.ones(choices, n, dtype=torch.bool, device=mean.device).scatter(1, chosen, False)
    others = kept.nonzero()[:, 1].view(choices, n - count)
    inner = cov[:, chosen.unsqueeze(2), chosen.unsqueeze(1)]  # (problems, choices, count, count)
    cross = cov[:, others.unsqueeze(2), chosen.unsqueeze(1)]
    outer = cov[:, others.unsqueeze(2), others.unsqueeze(1)]
    scale = inner.diagonal(dim1=-2, dim2=-1)
    varies = (scale > 0).all(-1)
    scale = torch.where(scale > 0, scale, 1).rsqrt()
    unit = inner * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    determinant = torch.linalg.det(unit)
    varies = varies & (determinant > _DETERMINED)
    eye = torch.eye(count, dtype=mean.dtype, device=mean.device)
    inverse = torch.linalg.inv(torch.where(varies[..., None, None], unit, eye))
    edge = mean[:, chosen] * scale  # in standard deviations
    solved = (inverse @ edge.unsqueeze(-1)).squeeze(-1)
    density = torch.exp(-0.5 * (edge * solved).sum(-1)) * scale.prod(-1)
    density = density / torch.where(varies, determinant, 1).sqrt() / (2 * math.pi) ** (count / 2)
    density = torch.where(varies, density, 0)
    if n == count:
        return density
    cross = cross * scale.unsqueeze(-2)
    given = mean[:, others] - (cross @ solved.unsqueeze(-1)).squeeze(-1)
    rest = outer - cross @ inverse @ cross.mT
    random = rest.diagonal(dim1=-2, dim2=-1) > _DETERMINED * outer.diagonal(dim1=-2, dim2=-1)
    rest = rest * (random.unsqueeze(-1) & random.unsqueeze(-2))
    inside = orthant_probability(given.flatten(0, 1), rest.flatten(0, 1), points)
    return density * inside.view(density.shape)
