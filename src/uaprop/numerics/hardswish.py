"""Hard-swish, ``x · clamp(x + 3, 0, 6) / 6``: quadratic between its kinks at ±3.

It satisfies ``f(x) = x + f(-x)``, so the mean may be taken at ``m ≤ 0``. For σ ≤ 1 the polynomial at the
mean is corrected for what lies beyond each kink, with partial moments ``I_n`` up to the fourth;
wider noise is integrated over ``[-3, 3]``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .localised import localised_moments, tabulate
from .moments import Moments, folded, reflected, standard, working_precision
from .normal import upper_partial_moments
from .widths import by_width

__all__ = ["hardswish"]

_NODES = tabulate(lambda x: (x * (x - 3) / 6, (2 * x - 3) / 6), 3.0, 20)


def _beyond(distance: Tensor, var: Tensor) -> list[Tensor]:
    """``[Q, σ I₁, σ² I₂, σ³ I₃, σ⁴ I₄]`` at a distance from the mean, which is not negative."""
    std, t = standard(distance, var)
    moments = upper_partial_moments(torch.where(var > 0, t, 1e10), 4)
    return [std**n * moment for n, moment in enumerate(moments)]


def _narrow(mean: Tensor, var: Tensor) -> Moments:
    inside = mean >= -3
    q, y, y2, y3, y4 = _beyond(-folded(mean + 3, inside), var)
    p, u, u2, u3, u4 = _beyond(3 - mean, var)
    right_mean = -(3 * u + u2) / 6
    right_gain = -(3 * p + 2 * u) / 6
    # outside, m < -3: f = (y² - 3y)/6 beyond the near kink, corrected beyond the far one
    out_mean = (y2 - 3 * y) / 6 + right_mean
    out_gain = (2 * y - 3 * q) / 6 + right_gain
    out_square = (y4 - 6 * y3 + 9 * y2 - u4 - 18 * u3 - 81 * u2 - 108 * u) / 36
    out_var = out_square - out_mean * out_mean
    # inside: f(m) + α(x-m) + β(x-m)², less what is cut off at -3, and corrected beyond +3
    value = mean * (mean + 3) / 6
    slope = (2 * mean + 3) / 6
    shift = var / 6 - (3 * y + y2) / 6 + right_mean
    square = (
        slope * slope * var
        + var * var / 12
        + value * (3 * y + y2) / 3
        - (9 * y2 + 6 * y3 + y4) / 36
        - (u3 + (6 - value) * u2 + (9 - 3 * value) * u) / 3
        - (u4 + 6 * u3 + 9 * u2) / 36
    )
    in_gain = slope + (3 * q + 2 * y) / 6 + right_gain
    return Moments(
        torch.where(inside, value + shift, out_mean),
        torch.where(inside, in_gain, out_gain),
        torch.where(inside, square - shift * shift, out_var),
    )


def _left(mean: Tensor, var: Tensor) -> Moments:
    def narrow(m: Tensor, v: Tensor) -> Moments:
        return _narrow(m.clamp_min(-1e4), v)

    return by_width(narrow, lambda m, v: localised_moments(m, v, _NODES), 1.0, mean, var)


@working_precision
def hardswish(mean: Tensor, var: Tensor) -> Moments:
    """``x · clamp(x + 3, 0, 6) / 6`` (Howard et al. 2019)."""
    result = reflected(_left, mean, var)
    return result._replace(mean=torch.where(var > 0, result.mean, F.hardswish(mean)))
