"""The report's own closed forms for sigmoid and expected cross-entropy, errata corrected.

They are approximations; :mod:`.logistic` has the moments to all digits. Kept because the report's
results should be reproducible, and because they are cheap.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .moments import Moments, working_precision

__all__ = ["LAMBDA", "sigmoid", "softplus_mean"]

LAMBDA = 0.368  # Daunizeau (2017), for the mean; the report leaves λ open (erratum 4)
_VARIANCE_LAMBDA = 3 / math.pi**2


@working_precision
def sigmoid(mean: Tensor, var: Tensor, lam: float = LAMBDA) -> Moments:
    """The report's equations (22) and (23).

    ``E[s] ≈ s(m/√(1+λv))`` and, with ``r = √(1+3v/π²)``,
    ``Var[s] ≈ s(m/r) (1 - s(m/r)) (1 - 1/r)``. The gain is the derivative of that mean.

    Returns:
        The approximate moments, of the mean's shape.
    """
    shrink = torch.rsqrt(1 + lam * var)
    value = torch.sigmoid(mean * shrink)
    gain = value * torch.sigmoid(-mean * shrink) * shrink
    root = torch.sqrt(1 + _VARIANCE_LAMBDA * var)
    inner = torch.sigmoid(mean / root) * torch.sigmoid(-mean / root)
    # 1 - 1/r = (r² - 1)/(r (r + 1)), without cancellation at small variances
    spread = inner * _VARIANCE_LAMBDA * var / (root * (root + 1))
    return Moments(value, gain, spread)


def softplus_mean(mean: Tensor, var: Tensor) -> Tensor:
    """``E[log(1+e^x)] ≈ softplus(m) + ½ s(m)(1 - s(m)) v``, the second-order Taylor expansion."""
    slope = torch.sigmoid(mean) * torch.sigmoid(-mean)
    return torch.nn.functional.softplus(mean) + 0.5 * slope * var
