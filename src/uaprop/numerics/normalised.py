"""A vector over the root of its own mean square: the marginals of ``c_i s^p`` with ``s = mean(c²) + ε``.

Layer normalisation is that with ``p = -½`` and ``c = x - mean(x)``, root-mean-square normalisation
with ``c = x``. A Gaussian ``c`` of mean ``m`` and covariance ``C`` has (Isserlis 1918, quadratic forms)::

    E[s] = mean(m²) + tr(C)/n + ε        Var[s] = (4 mᵀ C m + 2 tr(C²))/n²        Cov(c_i, s) = 2 (C m)_i/n

The normaliser depends on ``c_i`` itself. Given ``c_i = m + σz`` it has the mean::

    E[s | z] = E[s] + z Cov(c_i, s)/σ + (z² - 1) K/2σ²,        K = E[(c_i - m)² (s - E[s])] = 2 (C²)_ii/n

and about the variance ``Var[s] - Cov²/σ² - K²/2σ⁴``. It is approximated as log-normal then (the gamma
distribution has no inverse moments when very wide), ``E[s^p | z] = E[s|z]^p (1 + ρ)^{p(p-1)/2}`` with
``ρ`` the ratio of variance and squared mean, and ``c_i s^p`` is averaged over ``z`` by six nodes. All is
computed as a difference from ``z = 0``, so that a small variance keeps its digits.

That is for a normaliser that varies little. A few elements that are much noisier than the others make it vary
by as much as its mean. For independent elements the moments are then computed by an integral without any
approximation (:mod:`~uaprop.numerics.tilted`); the variance is then a difference of two moments, and where it
is less than a millionth of them the formula above, within that.

No formula may exceed what is possible: ``c_i² ≤ b s`` with ``b = n`` as it is and ``b = n - 1`` if centred,
so ``E[c_i s^{-1/2}]² + Var[c_i s^{-1/2}] ≤ b``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .moments import in_memory, root
from .positive import power
from .quadrature import hermite
from .tilted import integral, moments, of_rows, working_dtype

__all__ = [
    "STEADY",
    "Normaliser",
    "Pair",
    "chosen",
    "independent",
    "normalised",
    "of_independent",
    "root_mean_square",
    "typical_size",
    "where_wide",
    "within",
]

Pair = tuple[Tensor, Tensor]

_NODES = hermite(6)
_LEAST = -0.95  # what a node may take off the normaliser
STEADY = 0.005
"""``Var[s]/E[s]²`` below which the normaliser counts as varying little."""
_TRACED = 256  # elements, up to which a program that is traced has both formulas
_BLOCK = 2**14  # elements at a time, of which each node of the integral has a value


class Normaliser(NamedTuple):
    """``c`` and its normaliser ``s``; what is said of ``s`` broadcasts with ``c``.

    Attributes:
        mean: means of ``c``.
        var: variances of ``c``.
        cov: ``Cov(c_i, s)``.
        third: ``K``, see above.
        total: ``E[s]``.
        spread: ``Var[s]``.
    """

    mean: Tensor
    var: Tensor
    cov: Tensor
    third: Tensor
    total: Tensor
    spread: Tensor


def independent(mean: Tensor, var: Tensor, eps: Tensor | float, centred: bool) -> Normaliser:
    """For independent elements along the last dimension.

    Not centred, ``C = V`` is diagonal. Centred, ``C = A V A`` with ``A = 1 - 11ᵀ/n`` and ``A m = m``::

        (C m)_i = v_i m_i - mean(v m)          mᵀ C m = Σ v m²
        C_ii    = v_i (1 - 2/n) + mean(v)/n    tr(C²) = Σ v² (1 - 2/n) + mean(v)²
        (C²)_ii = v_i² (1 - 2/n) + (mean(v²) - (v_i - mean(v))²)/n

    Returns:
        What :func:`normalised` takes.
    """
    n = mean.shape[-1]

    def average(t: Tensor) -> Tensor:
        return t.mean(-1, keepdim=True)

    if not centred:
        total = average(mean.square() + var) + eps
        spread = average(var * (4 * mean.square() + 2 * var)) / n
        return Normaliser(mean, var, 2 / n * mean * var, 2 / n * var.square(), total, spread)
    mean = mean - average(mean)
    level, product, square = average(var), average(var * mean), average(var.square())
    own = var * (1 - 2 / n) + level / n
    response = var * mean - product  # C m
    twice = var.square() * (1 - 2 / n) + square / n - (var - level).square() / n  # (C²)_ii
    quadratic = average(var * mean.square())  # mᵀ C m / n
    trace = square * (1 - 2 / n) + level.square() / n  # tr(C²) / n
    total = average(mean.square()) + (1 - 1 / n) * level + eps
    spread = (4 * quadratic + 2 * trace) / n
    return Normaliser(mean, own, 2 / n * response, 2 / n * twice.clamp_min(0), total, spread)


def normalised(parts: Normaliser, exponent: float = -0.5) -> Pair:
    """Mean and variance of ``c_i s^p``, of c's shape."""
    mean, var, cov, third, total, spread = parts
    noisy = var > 0
    inverse = torch.where(noisy, torch.where(noisy, var, 1).rsqrt(), 0)
    std = root(var)
    divisor = torch.where(total > 0, total, 1)
    first = cov * inverse / divisor
    second = 0.5 * third * inverse.square() / divisor
    rest = spread / divisor / divisor - first.square() - 2 * second.square()
    ratio = rest.clamp_min(0)
    wide = torch.log1p(ratio)
    bend = 0.5 * exponent * (exponent - 1)
    scale = divisor**exponent * torch.exp(bend * wide)
    shifts, widths = [], []
    for node, _ in _NODES:
        change = (node * first + (node * node - 1) * second).clamp_min(_LEAST)
        spreads = torch.log1p(ratio / (1 + change).square())
        grown = exponent * torch.log1p(change) + bend * (spreads - wide)
        moved = mean + node * std
        shifts.append(mean * torch.expm1(grown) + node * std * torch.exp(grown))
        widths.append(
            moved.square() * torch.exp(2 * grown) * torch.expm1(exponent * exponent * spreads)
        )
    weights = [weight for _, weight in _NODES]
    shift = _sum(weights, shifts)
    within = _sum(weights, widths)
    between = _sum(weights, [(s - shift).square() for s in shifts])
    return scale * (mean + shift), scale.square() * (within + between)


def of_independent(mean: Tensor, var: Tensor, eps: float, centred: bool) -> Pair:
    """Mean and variance of ``c_i/√s`` for independent elements along the last dimension.

    The formulas have no unit: rows are divided by about ``√E[s]`` first, so that squares of squares stay in
    the range of the dtype.

    Returns:
        Two tensors of the mean's shape.
    """
    if centred:
        mean = mean - mean.mean(-1, keepdim=True)
    size = typical_size(mean, var, eps)
    mean, var, least = mean / size, var / size / size, eps / size / size
    parts = independent(mean, var, least, centred)

    def exact(mean: Tensor, var: Tensor, least: Tensor) -> Pair:
        return moments(of_rows(mean, var, least, centred))

    found = where_wide(parts, normalised(parts), exact, mean, var, least)
    return within(*found, mean.shape[-1] - centred)


def root_mean_square(mean: Tensor, var: Tensor, centred: bool) -> Pair:
    """Mean and variance of ``√s`` with ``ε = 0`` for independent elements along the last dimension.

    ``E[√s]`` is ``E[s s^{-1/2}]``, a sum over the elements of the integral for ``c_i² s^{-1/2}``. Where the
    normaliser varies little, ``s`` is approximated as gamma distributed.

    Returns:
        Two tensors without the last dimension.
    """
    if centred:
        mean = mean - mean.mean(-1, keepdim=True)
    size = typical_size(mean, var, 0.0)
    mean, var = mean / size, var / size / size
    parts = independent(mean, var, 0.0, centred)

    def exact(mean: Tensor, var: Tensor) -> Pair:
        tilts = of_rows(mean, var, 0.0, centred)
        squares = (tilts.mean.square() + tilts.var).mean(-1, keepdim=True)
        total = independent(mean, var, 0.0, centred).total
        return integral(tilts, squares, -0.5), total

    gamma = power(parts.total, parts.spread, 0.5)
    first, second = where_wide(parts, (gamma.mean, gamma.var), exact, mean, var)
    return (first * size).squeeze(-1), (second * size * size).squeeze(-1)


def typical_size(mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """A number of about ``√E[s]`` for each row, and 1 where that is zero; a constant."""
    with torch.no_grad():
        largest = torch.maximum(mean.abs(), root(var)).amax(-1, keepdim=True)
        largest = torch.clamp_min(largest, eps**0.5)
        return torch.where(largest > 0, largest, 1)


def where_wide(
    parts: Normaliser, found: Pair, exact: Callable[..., Pair], *arguments: Tensor
) -> Pair:
    """Mean and variance, by the integral in those rows whose normaliser varies much.

    Args:
        parts: the normaliser, one for each row: ``(…, 1)``.
        found: mean and variance for one that varies little, ``(…, k)``.
        exact: from the arguments, with any number of rows, to first and second moment.
        *arguments: tensors ``(…, elements)``.

    Returns:
        Two tensors of the shapes found.
    """
    wide = parts.spread > STEADY * parts.total.square()
    count, dtype = arguments[0].shape[-1], working_dtype(arguments[0])
    if not in_memory(*arguments):  # no values to look at: both
        if count > _TRACED:
            return found
        return chosen(found, exact(*(t.to(dtype) for t in arguments)), wide)
    rows = wide.reshape(-1).nonzero().squeeze(1)
    if not len(rows):
        return found
    first, second, *flat = (t.reshape(-1, t.shape[-1]) for t in (*found, *arguments))
    every = torch.ones((), dtype=torch.bool, device=wide.device)
    pieces = [
        chosen((first[some], second[some]), exact(*(t[some].to(dtype) for t in flat)), every)
        for some in rows.split(max(1, _BLOCK // count))
    ]
    means, variances = (torch.cat(column) for column in zip(*pieces, strict=True))
    first, second = first.index_copy(0, rows, means), second.index_copy(0, rows, variances)
    return first.view(found[0].shape), second.view(found[1].shape)


def chosen(found: Pair, exact: Pair, wide: Tensor) -> Pair:
    """One of two mean and variance, element by element.

    Args:
        found: mean and variance for a normaliser that varies little.
        exact: first and second moment by the integral.
        wide: where the normaliser varies much.

    Returns:
        Mean and variance, the exact ones where the normaliser varies much. A variance that is too small a
        part of the second moment to be a difference of moments is the other one, and no larger than that.
    """
    first, second = exact
    var = second - first.square()
    least = (2e-3 if first.dtype == torch.float32 else 1e-6) * second  # a hundred times the error
    var = torch.where(var > least, var, torch.minimum(found[1], least))
    pair = first.to(found[0].dtype), var.to(found[1].dtype)
    return torch.where(wide, pair[0], found[0]), torch.where(wide, pair[1], found[1])


def within(mean: Tensor, var: Tensor, limit: float) -> Pair:
    """Mean and variance of what has a square of at most ``limit``, changed as little as can be."""
    mean = mean.clamp(-(limit**0.5), limit**0.5)
    return mean, torch.minimum(var, limit - mean.square()).clamp_min(0)


def _sum(weights: list[float], terms: list[Tensor]) -> Tensor:
    total = weights[0] * terms[0]
    for weight, term in zip(weights[1:], terms[1:], strict=True):
        total = total + weight * term
    return total
