"""Functions that leave out what is small: thresholds and shrinkages.

``A = (x - λ)₊ + d·[x > λ]`` has, with ``r = (x - λ)₊`` and ``P = P(x > λ)``::

    E[A] = E[r] + d P      E[A'] = P + d φ((λ-m)/σ)/σ      Var[A] = Var[r] + d² P(1-P) + 2 d E[r](1-P)

since ``Cov(r, [x > λ]) = E[r](1 - P)``; the second term of the gain is the jump's. A shrinkage is
``A - B`` with the same for ``-x``. Never are both different from zero, so ``Cov(A, B) = -E[A] E[B]``, and all
terms of the variance are positive.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import logistic
from .clipped import clamp
from .moments import Moments, piecewise, working_precision
from .normal import pdf
from .rectified import relu
from .smooth import Jet, smooth_moments

__all__ = ["hardshrink", "softshrink", "tanhshrink", "threshold"]


def _above(mean: Tensor, var: Tensor, bound: float, jump: float) -> Moments:
    """``(x - bound)₊``, and a jump there."""
    ramp = relu(mean - bound, var)
    if jump == 0:
        return ramp
    above, below = ramp.gain, 1 - ramp.gain
    away = mean - bound
    # elsewhere the density has vanished, and its gradient would overflow
    near = away * away < 1600 * var
    std = torch.where(near, var, 1).sqrt()
    density = torch.where(near, pdf(torch.where(near, away, 0) / std) / std, 0)
    return Moments(
        ramp.mean + jump * above,
        above + jump * density,
        ramp.var + jump * below * (jump * above + 2 * ramp.mean),
    )


def _both(right: Moments, left: Moments) -> Moments:
    """``A - B`` with ``A B = 0``."""
    return Moments(
        right.mean - left.mean,
        right.gain + left.gain,
        right.var
        + left.var
        + right.mean * left.mean * 2,  # doubled last: one may be nearly infinite
    )


@working_precision
def threshold(mean: Tensor, var: Tensor, bound: float, value: float) -> Moments:
    """``x`` if ``x > bound``, else ``value``."""
    moments = _above(mean, var, bound, bound - value)
    plain = torch.nn.functional.threshold(mean, bound, value)
    centre = torch.where(var > 0, moments.mean + value, plain)
    return Moments(centre, moments.gain, moments.var)


@working_precision
def softshrink(mean: Tensor, var: Tensor, width: float) -> Moments:
    """``sign(x) (|x| - width)₊``."""
    moments = _both(_above(mean, var, width, 0.0), _above(-mean, var, width, 0.0))
    wide = var > width * width  # there the two sides nearly cancel
    inner = clamp(mean, torch.where(wide, var, 1 + width * width), -width, width)
    return moments._replace(mean=torch.where(wide, mean - inner.mean, moments.mean))


@working_precision
def hardshrink(mean: Tensor, var: Tensor, width: float) -> Moments:
    """``x`` if ``|x| > width``, else 0."""
    moments = _both(_above(mean, var, width, width), _above(-mean, var, width, width))
    plain = torch.nn.functional.hardshrink(mean, width)
    return moments._replace(mean=torch.where(var > 0, moments.mean, plain))


@working_precision
def tanhshrink(mean: Tensor, var: Tensor) -> Moments:
    """``x - tanh x``: by quadrature where it is small, else ``Var = v (1 - 2g) + Var[tanh]``."""
    result = piecewise(var < 0.25, _narrow, _wide, mean, var, safe=((0.0, 0.0), (0.0, 1.0)))
    plain = torch.nn.functional.tanhshrink(mean)
    return result._replace(mean=torch.where(var > 0, result.mean, plain))


def _shrunk(x: Tensor) -> Tensor:
    """``x - tanh x``, by its series where that cancels."""
    small = x.abs() < 0.3
    safe = torch.where(small, x, 0)
    square = safe * safe
    total = torch.zeros_like(x)
    for coefficient in reversed(_SERIES):
        total = (total + coefficient) * square
    return torch.where(small, safe * total, x - torch.tanh(x))


# -tanh x = -x + x³/3 - 2x⁵/15 + …, coefficients 2^{2n}(2^{2n}-1) B_{2n}/(2n)!
_SERIES = (
    1 / 3,
    -2 / 15,
    17 / 315,
    -62 / 2835,
    1382 / 155925,
    -21844 / 6081075,
    929569 / 638512875,
    -6404582 / 10854718875,
    443861162 / 1856156927625,
    -18888466084 / 194896477400625,
    113927491862 / 2900518163668125,
    -58870668456604 / 3698160658676859375,
)


def _jet(x: Tensor) -> Jet:
    t = torch.tanh(x)
    rest = 1 - t * t
    return Jet(
        _shrunk(x),
        t * t,
        2 * t * rest,
        2 * rest * (1 - 3 * t * t),
        8 * t * rest * (3 * t * t - 2),
    )


def _pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return _shrunk(x), torch.tanh(x).square()


def _narrow(mean: Tensor, var: Tensor) -> Moments:
    return smooth_moments(_jet, _pair, mean, var)


def _wide(mean: Tensor, var: Tensor) -> Moments:
    bent = logistic.tanh(mean, var)
    return Moments(mean - bent.mean, 1 - bent.gain, var * (1 - 2 * bent.gain) + bent.var)
