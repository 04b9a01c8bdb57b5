"""Chains of matrix products."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random, plain
from ..registry import rule
from .contract import square


@rule(torch.linalg.multi_dot, torch.chain_matmul)
def multi_dot(*tensors: Any, out: Any = None) -> Any:
    """A product of matrices. A product of pairs would take its own results for independent."""
    matrices = list(tensors) if len(tensors) > 1 else list(tensors[0])
    random = [i for i, matrix in enumerate(matrices) if isinstance(matrix, Random)]
    first = random[0]
    if len(random) == 1:
        return _between(matrices[:first], matrices[first], matrices[first + 1 :])
    if not matrices[first].cov.uncorrelated:
        return functools.reduce(torch.matmul, matrices)
    second = random[1]
    if len(random) > 2 or matrices[first] is matrices[second]:
        raise UnsupportedOperation(
            "",
            reason=f"it multiplies {len(random)} random matrices, or one with itself, and this method "
            "takes elements to be independent of each other",
            remedy='Use method="sketch", "adjoint" or "samples".',
        )
    x, y = matrices[first], matrices[second]
    before, inner, after = (
        matrices[:first],
        matrices[first + 1 : second],
        matrices[second + 1 :],
    )
    # L x M y R in terms that are uncorrelated if x and y are independent
    m_x, m_y = plain(x), plain(y)
    left = _linked(before, x - m_x, inner)
    right = _linked([], y - m_y, after)
    result = _linked(before, x, [*inner, m_y, *after])
    result = result + _linked([*before, m_x, *inner], y - m_y, after)
    return result + torch.matmul(left, right)


def _linked(before: list[Tensor], x: Any, after: list[Tensor]) -> Any:
    """A random matrix between constants, as one linear map."""
    if not before and not after:
        return x
    matrices = [*before, x, *after]
    return torch.linalg.multi_dot(matrices)


def _between(before: list[Tensor], x: Random, after: list[Tensor]) -> Linear:
    """``L x R`` with products of constants ``L`` and ``R``; its squared map is ``L² v R²``."""

    def apply(t: Tensor) -> Tensor:
        return torch.linalg.multi_dot([*before, t, *after])

    def squares(matrices: list[Tensor]) -> list[Tensor]:
        if not matrices:
            return []
        whole = functools.reduce(torch.matmul, matrices)
        return [square(whole)]

    def squared(v: Tensor) -> Tensor:
        if v.ndim == 1 and before and after:  # torch refuses it, too
            return apply(v)
        wide = v.float() if v.dtype == torch.float16 else v
        return functools.reduce(torch.matmul, [*squares(before), wide, *squares(after)]).to(v.dtype)

    return Linear((x,), affine=apply, linear=apply, squared=squared)
