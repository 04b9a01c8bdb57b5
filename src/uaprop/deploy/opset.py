"""What ONNX lacks, or torch's exporter gets wrong, in operations that it has.

``torch.onnx`` writes erfc(x) as 1 - erf(x), log1p(x) as log(1 + x) and expm1(x) as exp(x) - 1, which loses
the digits that these functions are there for. It has no erfcx, and leaves out the divisor of average
pooling without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DECOMPOSITIONS"]

# erfcx(x) = t exp(P(t)) with t = 1/(1 + x/2), relative error below 1.2e-7 for x ≥ 0: Press et al.,
# Numerical Recipes in C, 2nd ed. (1992), section 6.2
_ERFCX = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)


def _tail(x: Tensor) -> tuple[Tensor, Tensor]:
    """``t`` and ``P(t)`` of the formula above."""
    t = 1 / (1 + 0.5 * x)
    power = torch.full_like(t, _ERFCX[-1])
    for coefficient in reversed(_ERFCX[:-1]):
        power = power * t + coefficient
    return t, power


def erfc(x: Tensor) -> Tensor:
    """``erfc(x) = exp(-x²) erfcx(x)``, and ``2 - erfc(-x)`` on the left."""
    far = x.abs()
    t, power = _tail(far)
    right = t * torch.exp(power - far * far)
    return torch.where(x < 0, 2 - right, right)


def erfcx(x: Tensor) -> Tensor:
    """``erfcx(x) = exp(x²) erfc(x)``, and ``2 exp(x²) - erfcx(-x)`` on the left."""
    t, power = _tail(x.abs())
    right = t * torch.exp(power)
    return torch.where(x < 0, 2 * torch.exp(torch.where(x < 0, x * x, 0)) - right, right)


def log1p(x: Tensor) -> Tensor:
    """``log(u) x/(u - 1)`` with the rounded ``u = 1 + x`` (Kahan)."""
    u = 1 + x
    moved = u - 1
    still = (moved == 0) | ~(u < torch.inf)  # then log1p(x) is x
    return torch.where(still, x, torch.log(u) * (x / torch.where(still, 1, moved)))


def expm1(x: Tensor) -> Tensor:
    """``(u - 1) x/log(u)`` with the rounded ``u = exp(x)`` (Kahan); ``u - 1`` where it is no small number."""
    u = torch.exp(x)
    log = torch.log(u)
    near = (x.abs() < 1) & (log != 0)
    corrected = (u - 1) * (x / torch.where(near, log, 1))
    return torch.where(near, corrected, torch.where(log == 0, x, u - 1))


def clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Any:
    """One bound after the other: the exporter stumbles over an integer bound beside another."""
    if low is None or high is None:
        return NotImplemented  # it stays as it is
    return x.clamp_min(low).clamp_max(high)


def _average(operation: Callable[..., Tensor], dims: int) -> Callable[..., Any]:
    def avg_pool(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        """An average with a divisor of its own, as one with the usual divisor."""
        if divisor_override is None:
            return NotImplemented  # it stays as it is
        kernel, pad = _each(kernel_size, dims), _each(padding, dims)
        step = _each(stride, dims) if len(stride) else kernel
        around: list[int] = []
        count = 1
        for size, k, s, p in zip(x.shape[-dims:], kernel, step, pad, strict=True):
            room = size + 2 * p - k
            windows = room // s + 1
            if ceil_mode and room % s and windows * s < size + p:
                windows += 1
            around = [p, (windows - 1) * s + k - size - p, *around]
            count *= k
        total = operation(F.pad(x, around), kernel, step) * count
        return total / divisor_override

    return avg_pool


def _each(value: Sequence[int], dims: int) -> list[int]:
    return list(value) * (dims // len(value))


_aten = torch.ops.aten
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _aten.erfc.default: erfc,
    _aten.special_erfcx.default: erfcx,
    _aten.log1p.default: log1p,
    _aten.expm1.default: expm1,
    _aten.clamp.default: clamp,
    _aten.avg_pool2d.default: _average(F.avg_pool2d, 2),
    _aten.avg_pool3d.default: _average(F.avg_pool3d, 3),
}
"""For ``ExportedProgram.run_decompositions``."""
