"""Which inputs a calibration is for: the statistics of those it was fitted to, and what is far from them.

Three numbers are taken of every item of a random input, the first dimension being the batch:

    log mean(var),    mean(x),    log √mean(x²)

with averages over the elements of the variance ``var`` and of the mean ``x``. For each the *range* of the
items that were fitted is kept, and a tolerance beyond either end of it:

    log 4 (twice the standard deviation),    half the root mean square of all elements,    log 2

For the last two it is more if the fitted items differ much among themselves: as much as a prediction interval
``a ± t s √(1 + 1/n)`` needs, with the average ``a`` and the standard deviation ``s`` of ``n`` items. What is
beyond the tolerance is warned of. Noise and elements that are too large by :data:`FAR` tolerances (five times
the largest, if twice is tolerated) are refused.

On a digit classifier and six small networks with ReLU, tanh, GELU or an exponential at the end, each fitted
at three or four sizes of the noise, the error of the standard deviations was at most 2.1 times that at the
fitted size between half and twice of it; at five times up to 1.9, and 4.9 with the exponential; at a tenth up
to 2.9. Smaller noise and smaller elements are never refused: a network tends to a linear one then, or to a
constant, and the error to a limit. Nothing limits it for larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..gaussian import Gaussian

__all__ = ["Applicability", "applicability", "fitted_range", "statistics"]

FAR = math.log(5) / math.log(2)
_TOLERANCE = (math.log(4), 0.5, math.log(2))
_DEVIATE = 3.09  # that a normal variable exceeds in 1 of 1000 cases
_SMALLEST = 0.01  # of all elements' size: an item of zeros has no logarithm
_NO_NOISE = math.log(torch.finfo(torch.float32).tiny)
_NAMES = ("noise's standard deviation", "elements' mean", "elements' root mean square")


class Applicability(NamedTuple):
    """Whether inputs are like those that were fitted.

    Attributes:
        problem: how they differ; "" if they do not.
        is_far: whether they are so far away that nothing is known of the error.
    """

    problem: str = ""
    is_far: bool = False


def statistics(x: Gaussian) -> Tensor:
    """The three numbers of every item.

    Args:
        x: a random input; without a batch it is a single item.

    Returns:
        ``(items, 3)``, in float64 on the CPU; the first is minus infinity where there is no noise.
    """
    with torch.no_grad():
        loc, var = (t if t.ndim > 1 else t.reshape(1, -1) for t in (x.loc, x.cov.var))
        found = _averages(loc, var)
        if not found.isfinite().all():  # models for missing values take NaN
            found = _averages(torch.where(loc.isfinite(), loc, 0), var)
    limits = torch.finfo(torch.float32)
    noise, mean, size = found.nan_to_num(0, limits.max, limits.min).unbind(1)
    quiet = torch.where(noise > 0, 0, -torch.inf)
    return torch.stack([_log(noise) + quiet, mean, _log(size)], 1)


def _averages(loc: Tensor, var: Tensor) -> Tensor:
    """The averages of variance and mean and the root mean square, ``(items, 3)``."""
    working = torch.promote_types(loc.dtype, torch.float32)
    dims = tuple(range(1, loc.ndim))
    count = max(1, math.prod(loc.shape[1:]))
    noise, mean = var.mean(dims, dtype=working), loc.mean(dims, dtype=working)
    size = torch.linalg.vector_norm(loc, dim=dims, dtype=working) * count**-0.5
    return torch.stack([noise, mean, size], 1).to("cpu", torch.float64)


def _log(values: Tensor) -> Tensor:
    limits = torch.finfo(torch.float32)
    return values.clamp(limits.tiny, limits.max).log()


def fitted_range(x: Gaussian) -> Tensor:
    """What a calibration keeps of a random input that it is fitted to.

    Returns:
        ``(3, 4)``: for each statistic the lower end of the tolerance, the least and the greatest value, and
        the upper end. Items without noise are left out, if there are others.
    """
    found = statistics(x)
    noisy = found[:, 0] > -torch.inf
    if noisy.any():
        found = found[noisy]
    else:
        found[:, 0] = _NO_NOISE
    least, greatest = found.aminmax(dim=0)
    scale = float((2 * found[:, 2]).exp().mean().sqrt())
    tolerance = found.new_tensor(_TOLERANCE)
    tolerance[1] *= scale
    below = above = tolerance
    if len(found) > 1:
        found[:, 2].clamp_min_(math.log(max(scale * _SMALLEST, torch.finfo(found.dtype).tiny)))
        reach = _student(len(found) - 1) * found.std(0) * (1 + 1 / len(found)) ** 0.5
        reach[0] = 0  # noise is the user's choice, and its range what there is evidence of
        average = found.mean(0)
        below = torch.maximum(tolerance, least - (average - reach))
        above = torch.maximum(tolerance, average + reach - greatest)
    return torch.stack([least - below, least, greatest, greatest + above], 1)


def _student(freedom: int) -> float:
    """The quantile of Student's t distribution, by the formula of Wallace (1959)."""
    z = _DEVIATE * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


def applicability(inputs: Sequence[Gaussian], ranges: Tensor) -> Applicability:
    """Compare the random inputs of a call with those that were fitted.

    Args:
        inputs: of the call.
        ranges: ``(inputs, 3, 4)``, :func:`fitted_range` of each.

    Returns:
        What was found.
    """
    if len(inputs) != len(ranges):
        return Applicability(
            f"the number of random inputs is {len(inputs)}, and that of those fitted {len(ranges)}",
            True,
        )
    problems, items, outside, is_far = [], 0, 0, False
    for number, (x, fitted) in enumerate(zip(inputs, ranges, strict=True)):
        if x.numel() == 0:
            continue
        found = statistics(x)
        low, least, greatest, high = fitted.unbind(1)
        items += len(found)
        found = found[found[:, 0] > -torch.inf]  # the result of any other has no variance
        strange = ((found < low) | (found > high)).any(1)
        if not strange.any():
            continue
        outside += int(strange.sum())
        down, up = found[strange].aminmax(dim=0)
        too_large = up > greatest + FAR * (high - greatest)
        is_far = is_far or bool(too_large[0] | too_large[2])
        name = f" of random input {number}" if len(inputs) > 1 else ""
        for i in range(3):
            if up[i] > high[i]:
                problems.append(_described(i, name, float(up[i]), float(greatest[i]), "largest"))
            if down[i] < low[i]:
                problems.append(_described(i, name, float(down[i]), float(least[i]), "smallest"))
    if not problems:
        return Applicability()
    return Applicability(f"{outside} of {items} items differ: {'; '.join(problems)}", is_far)


def _described(number: int, name: str, value: float, end: float, which: str) -> str:
    """How far a statistic is outside."""
    if number == 1:
        side = "above" if value > end else "below"
        apart = f"{abs(value - end):.3g} {side} the {which} that was fitted, {end:.3g}"
        return f"the {_NAMES[number]}{name} is {value:.3g}, {apart}"
    power = 0.5 if number == 0 else 1.0  # a variance's root
    value, end = value * power, end * power
    apart = f"{_exp(value - end):.3g} times the {which} that was fitted, {_exp(end):.3g}"
    return f"the {_NAMES[number]}{name} is {_exp(value):.3g}, {apart}"


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
