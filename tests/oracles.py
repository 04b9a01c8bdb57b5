"""Oracles for whole operations: brute force for linear maps, Monte Carlo with z-scores for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import uaprop as ua


def random_input(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> ua.Gaussian:
    """Means of order one, variances from 0.1 to 1.1, the same every time."""
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    var = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return ua.Gaussian(mean.to(dtype), var.to(dtype))


def brute_force(call: Callable[[Any], Any], x: ua.Gaussian) -> tuple[Tensor, Tensor]:
    """Mean and variance of a linear map from its matrix, which is what it makes of unit vectors."""
    zero = torch.zeros_like(x.loc)
    offset = call(zero)
    var = torch.zeros_like(offset)
    for i in range(x.numel()):
        unit = zero.clone()
        unit.view(-1)[i] = 1
        var = var + (call(unit) - offset).square() * x.var.reshape(-1)[i]
    return call(x.loc.clone()), var


def z_scores(
    call: Callable[[Any], Any], x: ua.Gaussian, mean: Tensor, var: Tensor, count: int = 40_000
) -> tuple[float, float]:
    """How many standard errors Monte Carlo is away from a mean and a variance, at the worst element."""
    draws = x.sample(count, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        y = torch.vmap(call, randomness="different", chunk_size=10_000)(draws).double()
    n = len(y)
    centred = y - y.mean(0)
    sample_var = centred.square().sum(0) / (n - 1)
    fourth = centred.pow(4).mean(0)
    mean_error = (sample_var / n).sqrt()
    var_error = ((fourth - sample_var.square()).clamp_min(0) / n).sqrt()
    tiny = 1e-12 * (1 + y.mean(0).abs())
    z_mean = ((y.mean(0) - mean).abs() / (mean_error + tiny)).max()
    z_var = ((sample_var - var).abs() / (var_error + tiny)).max()
    return float(z_mean), float(z_var)


def jacobian_std(call: Callable[[Any], Any], x: ua.Gaussian) -> Tensor:
    """Standard deviations of independent elements through the Jacobian at the mean."""
    jacobian = torch.autograd.functional.jacobian(call, x.loc.clone())
    rows = jacobian.reshape(*jacobian.shape[: jacobian.ndim - x.ndim], -1)
    return (rows.square() @ x.cov.var.reshape(-1)).sqrt()


def unequal(mean: Tensor, scale: float = 1.0) -> ua.Gaussian:
    """A Gaussian whose standard deviations go from 0.4 to 1.2 times the scale, in no order."""
    generator = torch.Generator().manual_seed(11)
    std = 0.4 + 0.8 * torch.rand(mean.shape, generator=generator, dtype=torch.float64)
    return ua.Gaussian(mean, (scale * std.to(mean.dtype)).square())
