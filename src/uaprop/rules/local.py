"""Norms over windows: power-average pooling and local response normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kinds import Joint, Random
from ..numerics import tilted
from ..numerics.moments import in_memory
from ..numerics.normalised import STEADY, Normaliser, chosen, normalised
from ..numerics.tilted import of_windows, working_dtype
from ..registry import rule
from .average import per_dim
from .normalise import SOURCE
from .positive import check_nonzero, check_positive
from .ratio import covariance, matched, positive_power

_LEAST_POWER = 0.4  # for which the integral over tilts has nodes enough


def _register_lp_pool(
    operation: Callable[..., Tensor], dims: int, average: Any, largest: Any
) -> None:
    @rule(
        operation, exact=False, source="a sum of squares as gamma distributed, Satterthwaite (1946)"
    )
    def lp_pool(
        input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Any:
        if math.isinf(norm_type):
            sign = 1 if norm_type > 0 else -1
            if sign < 0:
                check_nonzero(input, "the smallest absolute value is far from Gaussian near zero")
            pooled = largest(sign * torch.abs(input), kernel_size, stride, ceil_mode=ceil_mode)
            return sign * pooled
        if norm_type not in range(2, 33, 2) and norm_type != 1:
            check_positive(input)  # torch has no value where the sum is negative
        size = math.prod(per_dim(kernel_size, dims))
        raised = input if norm_type == 1 else input**norm_type
        total = average(raised, kernel_size, stride, ceil_mode=ceil_mode) * size
        return total if norm_type == 1 else positive_power(total, 1.0 / norm_type)

    lp_pool.__name__ = operation.__name__


_register_lp_pool(F.lp_pool1d, 1, F.avg_pool1d, F.max_pool1d)
_register_lp_pool(F.lp_pool2d, 2, F.avg_pool2d, F.max_pool2d)
_register_lp_pool(F.lp_pool3d, 3, F.avg_pool3d, F.max_pool3d)


@rule(F.local_response_norm, exact=False, source=SOURCE)
def local_response_norm(
    input: Random, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Joint:
    if input.ndim < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)"
        )

    def window(x: Any) -> Any:
        """The average over neighbouring channels, zero outside."""
        flat = x.reshape(x.shape[0], 1, x.shape[1], -1)
        padded = F.pad(flat, (0, 0, size // 2, (size - 1) // 2))
        return F.avg_pool2d(padded, (size, 1), stride=1).reshape(x.shape)

    def function(x: Tensor) -> Tensor:
        return F.local_response_norm(x, size, alpha, beta, k)

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        working = torch.promote_types(mean.dtype, torch.float32)
        m, v = mean.to(working), var.to(working)
        share = alpha / size
        total = k + alpha * window(m.square() + v)
        spread = alpha * share * window(v * (4 * m.square() + 2 * v))
        parts = Normaliser(m, v, 2 * share * m * v, 2 * share * v.square(), total, spread)
        first, second = normalised(parts, -beta)
        wide = spread > STEADY * total.square()
        if beta >= _LEAST_POWER and (not in_memory(m, v) or bool(wide.any())):
            dtype = working_dtype(m)
            wider = m.to(dtype), v.to(dtype), total.to(dtype)
            tilts = of_windows(*wider, share, k, lambda x: size * window(x))
            first, second = chosen((first, second), tilted.moments(tilts, -beta), wide)
        certain = window(v) == 0
        return torch.where(certain, function(mean), first.to(mean.dtype)), second.to(mean.dtype)

    def composed(x: Any) -> Any:
        total = k + alpha * window(torch.square(x))
        y = x * positive_power(total, -beta)
        if x.cov.needs_functions:  # draws have nothing to be put right
            return y
        # x s^p is the small difference of large terms: each of its covariances from what it is made of,
        # as the linear and the quadratic part of s are uncorrelated
        mean = x.loc
        apart = x - mean
        linear = alpha * window(2 * mean * apart)
        squares = torch.square(apart)
        quadratic = alpha * window(squares)
        parts = Normaliser(
            mean,
            x.cov.var,
            covariance(x, linear),
            covariance(squares, quadratic),
            total.loc,
            linear.cov.var + quadratic.cov.var,
        )
        return matched(y, *normalised(parts, -beta))

    return Joint((input,), function, moments, composed)
