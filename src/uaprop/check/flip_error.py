"""The standard error of a flip probability, from those of the scores.

A flip probability ``F`` of class p is one minus the probability that all differences ``d_j = s_p - s_j`` are
positive. With its gradient ``g`` and its Hessian ``H`` in their means (:mod:`.orthant_derivatives`), an error
``δμ`` of the means and ``δR`` of the covariance change it by ``g·δμ + ½ tr(H δR)``.

What is known of these errors are standard errors, ``e`` of the mean and ``ε`` of the standard deviation of
each score. What is not, is how those of different scores go together. A method that samples has the mean from
the average of ``n`` independent terms, and part of the covariance from their products. If the terms are
normal, with the covariance ``U``, then

    Cov(δm) = U/n,        Cov(δΣ_ij, δΣ_kl) = T_ik T_jl + T_il T_jk,        T = U/√(n - 1)

(Anderson, *Multivariate statistical analysis*, section 3.4). The terms are taken to be correlated as the
scores are, by ``ρ``: for plain samples, whose terms are the scores, they are. So ``U_ij = n ρ_ij e_i e_j``. A
method that knows a part of the variance in another way has errors there, too, and tails that are heavier than
normal have larger ones. Of an estimate of ``T_ii`` with the variance ``2 T_ii²`` the root has the standard
error ``ε = T_ii/√(2 Σ_ii)``, so ``T_ij = ρ_ij √(t_i t_j)`` with ``t`` the larger one of ``n e²/√(n - 1)`` and
``√(2 Σ_ii) ε``. For normal terms the two errors are independent of each other:

    Var(δF) = gᵀ Cov(δμ) g + ½ tr((H T)²)

with covariances and ``T`` those of the differences. In ``z = Q⁻¹(F)``, the number of standard deviations that
the prediction is away from a flip, that is an error ``s = √Var(δF)/φ(z)``. The derivative of ``F`` changes a
lot over that distance where flips are rare; ``z`` depends on means and standard deviations much more evenly,
and linearly on the means of two classes. So the standard error of ``F`` is the root mean square of
``Q(z + s u) - F`` for a standard normal ``u``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..numerics.orthant import upper_tail
from ..numerics.orthant_derivatives import orthant_derivatives
from ..numerics.union import HALF_STEP

__all__ = ["ScoreErrors", "flip_error"]

_RIVALS = 15  # that are looked at: the others hardly add to a derivative, and take long
_POINTS = 128  # for derivatives, of which two digits are enough
_REACH, _STEPS = 6.0, 97  # of the average over u


class ScoreErrors(NamedTuple):
    """How well scores are known.

    Attributes:
        mean: standard errors of their means, (batch, classes), float64.
        std: of their standard deviations.
        samples: how many samples they come from, if that is known.
    """

    mean: Tensor
    std: Tensor
    samples: int | None

    def of(self, rows: Tensor, classes: Tensor) -> ScoreErrors:
        """Those of some classes of some rows."""
        return ScoreErrors(
            self.mean[rows].gather(1, classes), self.std[rows].gather(1, classes), self.samples
        )


def flip_error(
    mean: Tensor, cov: Tensor, errors: ScoreErrors, win: Tensor, predicted: Tensor
) -> Tensor:
    """The standard error of the probability that another class wins than the predicted one.

    Args:
        mean: the scores' means, (batch, classes), float64; the likeliest rivals first.
        cov: their covariances, (batch, classes, classes), positive semi-definite.
        errors: how well they are known.
        win: the probability of each class to win.
        predicted: the number of the predicted one, (batch,).

    Returns:
        (batch,).
    """
    own = predicted.unsqueeze(1)
    stay = win.gather(1, own).squeeze(1)
    flip = win.scatter(1, own, 0.0).sum(1)
    numbers = torch.arange(mean.shape[1], device=mean.device).expand_as(mean)
    rivals = numbers[numbers != own].view(len(mean), -1)[:, :_RIVALS]
    kept = torch.cat([own, rivals], 1)
    mean, of_mean, of_std = (each.gather(1, kept) for each in (mean, errors.mean, errors.std))
    cov = cov.gather(1, kept.unsqueeze(2).expand(-1, -1, cov.shape[2]))
    cov = cov.gather(2, kept.unsqueeze(1).expand(-1, kept.shape[1], -1))
    engine = SobolEngine(max(rivals.shape[1] - 1, 1), scramble=True, seed=0)
    points = (engine.draw(_POINTS, dtype=torch.float64) + HALF_STEP).to(mean.device)
    gaps = mean[:, :1] - mean[:, 1:]
    gradient, hessian = orthant_derivatives(gaps, _of_differences(cov), points)

    std = cov.diagonal(dim1=-2, dim2=-1).sqrt()
    unit = torch.where(std > 0, 1 / std, 0)
    shared = math.sqrt(2) * std * of_std
    if errors.samples is not None and errors.samples > 1:
        count = errors.samples
        shared = torch.maximum(shared, count / math.sqrt(count - 1) * of_mean.square())
    of_gaps = _of_differences(_scaled(cov, unit * of_mean))
    turned = hessian @ _of_differences(_scaled(cov, unit * shared.sqrt()))
    variance = torch.einsum("bi,bij,bj->b", gradient, of_gaps, gradient)
    variance = variance + 0.5 * (turned * turned.mT).sum((1, 2))
    return _by_distance(torch.minimum(flip, stay), variance.clamp_min(0).sqrt())


def _scaled(matrix: Tensor, factors: Tensor) -> Tensor:
    return matrix * factors.unsqueeze(-1) * factors.unsqueeze(-2)


def _of_differences(cov: Tensor) -> Tensor:
    """The covariance of the first element less each other, from that of all."""
    first = cov[:, :1, 1:]
    return cov[:, 1:, 1:] + cov[:, :1, :1] - first - first.mT


def _by_distance(probability: Tensor, error: Tensor) -> Tensor:
    """``√E[(Q(z + s u) - Q(z))²]`` with ``Q(z)`` the probability and ``s`` its error over ``φ(z)``.

    Args:
        probability: at most ½; the other one has the same error.
        error: of first order.

    Returns:
        Shaped like them; 0 where the probability is 0 to all digits.
    """
    z = -torch.special.ndtri(probability)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    possible = density > 0
    z = torch.where(possible, z, 0)
    spread = torch.where(possible, error / torch.where(possible, density, 1), 0)
    u = torch.linspace(-_REACH, _REACH, _STEPS, dtype=z.dtype, device=z.device).unsqueeze(1)
    weights = torch.exp(-0.5 * u.square())
    squares = (upper_tail(z + spread * u) - upper_tail(z)).square()
    return (weights * squares).sum(0).div(weights.sum()).sqrt()
