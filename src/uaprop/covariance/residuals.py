"""What nonlinear maps leave after their linear parts, and how that of one goes with that of another.

A residual is uncorrelated with whatever its operands are jointly Gaussian with (Stein). A *level* counts the
nonlinearities one after the other. Operands of the same level are taken to be jointly Gaussian, and then the
residuals of two of them, in parallel branches or of one tensor that is used twice, are correlated as
Price and Isserlis say. Residuals of different levels are not. So every level's covariance is that of
functions of a Gaussian vector: positive semi-definite, whatever the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from ..numerics.bivariate import Residual, correlation, residual_covariance
from .quadratic import Matches, product_covariance
from .terms import Maps, Term, between, variances

__all__ = ["Products", "Scalar", "residual_term"]


@dataclass(frozen=True)
class Scalar:
    """The residual of a scalar function of every element of a tensor.

    Attributes:
        residual: the function's.
        operand: the tensor's maps.
    """

    residual: Residual
    operand: Maps


@dataclass(frozen=True)
class Products:
    """The second-order part ``Σ (x̃_a ỹ_b - Cov(x_a, y_b))`` of a product of two tensors.

    Attributes:
        matches: which elements are multiplied.
        left: maps of the first tensor.
        right: maps of the second tensor.
    """

    matches: Matches
    left: Maps
    right: Maps


Origin: TypeAlias = Scalar | Products


def residual_term(origin: Origin) -> Term:
    """A term for the residual, with its covariance and that with the residuals of its level."""
    match origin:
        case Scalar(_, operand):
            after = [*operand]
        case Products(_, left, right):
            after = [*left, *right]
    term = Term(_shared(origin, origin), after, origin)
    known = {number: t for root in term.roots for number, t in root.residuals.items()}
    for _, sibling in sorted(known.items()):
        if sibling.level == term.level:
            term.relate(sibling, _shared(origin, sibling.origin))
    for root in term.roots:
        root.residuals[term.number] = term
    return term


def _shared(first: Origin, second: Origin) -> Tensor:
    match first, second:
        case Scalar(), Scalar():
            return _shared_scalars(first, second)
        case Products(), Products():
            return _shared_products(first, second)
        case Products(), Scalar():
            return _shared_mixed(first, second)
        case Scalar(), Products():
            return _shared_mixed(second, first).mT
    raise AssertionError


def _shared_scalars(first: Scalar, second: Scalar) -> Tensor:
    cov = between(first.operand, second.operand)
    var, other = (variances(s.operand).reshape(-1) for s in (first, second))
    return residual_covariance(first.residual, second.residual, correlation(cov, var, other))


def _shared_products(first: Products, second: Products) -> Tensor:
    same = between(first.left, second.left), between(first.right, second.right)
    crossed = between(first.left, second.right), between(first.right, second.left)
    return product_covariance(first.matches, second.matches, same, crossed)


def _shared_mixed(products: Products, scalar: Scalar) -> Tensor:
    """``Σ Cov(x_a, z) Cov(y_b, z) E[f''(z)]``, with ``v E[f''] = √2 a₂``: only the second order meets."""
    var = variances(scalar.operand).reshape(-1)
    curvature = math.sqrt(2) * scalar.residual.coefficients[0]
    curvature = torch.where(var > 0, curvature / torch.where(var > 0, var, 1), 0)
    output, a, b, count = products.matches
    terms = between(products.left, scalar.operand)[a] * between(products.right, scalar.operand)[b]
    return terms.new_zeros((count, len(var))).index_add(0, output, terms) * curvature
