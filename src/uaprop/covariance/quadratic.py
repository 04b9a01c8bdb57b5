"""Quadratic functions of Gaussians: the second order of products and of smooth vector maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Bilinear
from .stacked import across
from .terms import check_size

__all__ = ["Matches", "bilinear_matches", "product_covariance", "product_mean", "taylor"]

_IN_FLIGHT = 2**22  # entries held at a time
_LARGEST = 2**15  # products of two elements


class Matches(NamedTuple):
    """Which elements a bilinear map multiplies: output ``k`` is ``Σ x_a y_b`` over its ``(k, a, b)``."""

    output: Tensor
    left: Tensor
    right: Tensor
    outputs: int


def bilinear_matches(kind: Bilinear, mean: Tensor) -> Matches:
    """The map's triples, from what it makes of unit vectors.

    Every output has at most one partner for an element of the first operand, so the map of a unit vector
    and the numbers 1, 2, … has that partner's number.

    Args:
        kind: the bilinear map.
        mean: its output on the means, for the shape.

    Returns:
        The triples, in any order.

    Raises:
        UnsupportedOperation: if an output has several partners for one element.
        ValueError: if there are too many triples.
    """
    x, y = kind.inputs
    count, device = x.loc.numel(), mean.device
    numbers = torch.arange(1, y.loc.numel() + 1, dtype=torch.float64, device=device).view(y.shape)
    ones = torch.ones_like(numbers)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    total = 0
    step = max(1, _IN_FLIGHT // max(1, mean.numel(), count))
    for start in range(0, count, step):
        units = torch.zeros((min(step, count - start), count), dtype=torch.float64, device=device)
        units[:, start:].fill_diagonal_(1)
        stack = units.view(-1, *x.shape)
        partners = across(lambda e: kind.product(e, numbers), stack).reshape(len(units), -1)
        counts = across(lambda e: kind.product(e, ones), stack).reshape(len(units), -1)
        if not bool(((counts == 0) | (counts == 1)).all()):
            raise UnsupportedOperation(
                "",
                reason="its rule calls it bilinear, but it multiplies an element with several others "
                "for one output, or by a coefficient",
                remedy='Correct the rule, or use method="samples".',
            )
        left, output = counts.nonzero(as_tuple=True)
        found.append((output, left + start, partners[left, output].round().long() - 1))
        total += len(output)
        if total > _LARGEST:
            raise ValueError(
                f"a product of tensors of shapes {tuple(x.shape)} and {tuple(y.shape)} multiplies more "
                f"than {_LARGEST} pairs of elements, too many for a dense covariance; use "
                'method="adjoint" or method="samples"'
            )
    output, left, right = (torch.cat(column) for column in zip(*found, strict=True))
    return Matches(output, left, right, mean.numel())


def product_mean(matches: Matches, cross: Tensor) -> Tensor:
    """``E[x̃ ỹ]``, the sum of the covariances of all that is multiplied."""
    terms = cross[matches.left, matches.right]
    return terms.new_zeros(matches.outputs).index_add(0, matches.output, terms)


def product_covariance(
    first: Matches, second: Matches, same: tuple[Tensor, Tensor], crossed: tuple[Tensor, Tensor]
) -> Tensor:
    """``Cov(x_a y_b, z_c w_d) = Σ_ac Σ_bd + Σ_ad Σ_bc`` of centred ``x, y, z, w`` (Isserlis 1918), summed.

    Args:
        first: the triples of ``x`` and ``y``.
        second: the triples of ``z`` and ``w``.
        same: covariances of ``x`` and ``z``, and of ``y`` and ``w``.
        crossed: covariances of ``x`` and ``w``, and of ``y`` and ``z``.

    Returns:
        A matrix, outputs of the first by outputs of the second.
    """
    output, c, d, count = second
    result = same[0].new_zeros((first.outputs, count))
    step = max(1, _IN_FLIGHT // max(1, len(output)))
    pieces = zip(*(column.split(step) for column in first[:3]), strict=True)
    for rows, a, b in pieces:
        block = same[0][a][:, c] * same[1][b][:, d] + crossed[0][a][:, d] * crossed[1][b][:, c]
        summed = block.new_zeros((len(rows), count)).index_add(1, output, block)
        result = result.index_add(0, rows, summed)
    return result


def taylor(
    function: Callable[[Tensor], Tensor], mean: Tensor, cov: Tensor, outputs: int
) -> tuple[Tensor, Tensor]:
    """Second-order terms of a smooth map: mean ``½ tr(H_k Σ)``, covariance ``½ tr(H_k Σ H_l Σ)``.

    Args:
        function: the map.
        mean: where to expand it.
        cov: the covariance of the argument, ``(n, n)``.
        outputs: how many elements the map has.

    Returns:
        Vector and matrix.
    """
    count = mean.numel()
    check_size(outputs, count * count, f"the second derivatives of a map of {count} elements")
    hessian = torch.func.hessian(function)(mean).reshape(outputs, count, count)
    weighted = hessian @ cov
    shift = 0.5 * weighted.diagonal(dim1=1, dim2=2).sum(-1)
    own = 0.5 * weighted.flatten(1) @ weighted.mT.flatten(1).mT
    return shift, (own + own.mT) / 2
