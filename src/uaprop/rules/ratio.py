"""Quotients of random tensors that depend on each other."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from ..kinds import Elementwise, Random
from ..numerics import positive
from ..numerics.moments import Moments
from ..numerics.normalised import Normaliser, normalised, within
from ..registry import rule

__all__ = ["SOURCE", "covariance", "matched", "positive_power", "power_of", "ratio"]

SOURCE = "the gamma distribution of the same mean and variance, Satterthwaite (1946)"


def power_of(input: Random, exponent: float) -> Elementwise:
    """``xᵖ`` of what is positive, unchecked."""
    return Elementwise((input,), functools.partial(positive.power, exponent=exponent))


def positive_power(input: Any, exponent: float) -> Any:
    """``xᵖ`` of what is positive by its making: a mean of squares, a sum of absolute values."""
    if has_torch_function_unary(input):
        return handle_torch_function(positive_power, (input,), input, exponent)
    return torch.pow(input, exponent)


@rule(positive_power, exact=False, source=SOURCE)
def power_by_its_making(input: Random, exponent: float) -> Elementwise:
    return power_of(input, exponent)


def ratio(centred: Any, squares: Any, total: Any, exponent: float) -> Any:
    """``c s^p`` of correlated random tensors.

    The product of ``c`` and the power gives the pattern of the covariance. Its marginals come out as
    if the two were jointly Gaussian, and are put right: they are known from a few covariances.

    Args:
        centred: ``c``.
        squares: ``c²`` if ``s`` is the mean of all of them, and so not Gaussian; None if ``c`` and ``s`` are
            taken to be jointly Gaussian. Then ``E[c̃² s̃] = 0``, and the estimate of factors, a small
            difference of large numbers, is not needed.
        total: ``s``.
        exponent: ``p``.

    Returns:
        A random tensor of c's shape.
    """
    y = centred * positive_power(total, exponent)
    if centred.cov.needs_functions:  # samples have nothing to be put right
        return y
    mean, var = centred.loc, centred.cov.var
    cov = covariance(centred, total)
    third = torch.zeros_like(cov)
    if squares is not None:
        third = covariance(squares, total) - 2 * mean * cov
        # K = 2 (C²)_ii/n; and C_ii² ≤ (C²)_ii ≤ C_ii tr C, which an estimate may violate
        third = torch.maximum(third, 2 / mean.shape[-1] * var.square())
        third = torch.minimum(third, 2 * var * var.mean(-1, keepdim=True))
    parts = Normaliser(mean, var, cov, third, total.loc, total.cov.var)
    found = normalised(parts, exponent)
    if squares is not None:
        found = within(*found, mean.shape[-1])
    return matched(y, *found)


def covariance(x: Any, y: Any) -> Tensor:
    """``Cov(x, y)`` of two random tensors that broadcast, from the variance of their sum."""
    v, w = x.cov.var, y.cov.var
    usable = (v > 0) & (w > 0)
    scale = torch.where(usable, (v / torch.where(usable, w, 1)).detach(), 0)
    scale = torch.where(scale > 0, scale, 1).sqrt()
    both: Tensor = (x + y * scale).cov.var
    return torch.where(usable, 0.5 * ((both - v) / scale - w * scale), 0)


def matched(input: Any, mean: Tensor, var: Tensor) -> Any:
    """The same random tensor with other marginals: moved, and stretched about its mean.

    Returns:
        The input itself if it is a plain tensor.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(matched, (input,), input, mean, var)
    return input


@rule(matched, exact=False)
def marginals(input: Random, mean: Tensor, var: Tensor) -> Elementwise:
    def moments(m: Tensor, v: Tensor) -> Moments:
        noisy = v > 0
        gain = torch.where(noisy, var / torch.where(noisy, v, 1), 1)
        gain = torch.where(gain > 0, torch.where(gain > 0, gain, 1).sqrt(), 0)
        return Moments(mean + 0 * m, gain, gain * (gain * v))

    return Elementwise((input,), moments)
