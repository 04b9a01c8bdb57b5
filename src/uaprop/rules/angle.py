"""The angle between vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Joint
from ..numerics.directions import cosine
from ..registry import rule
from .normalise import SOURCE
from .ratio import matched

Pair = tuple[Tensor, Tensor]


@rule(F.cosine_similarity, torch.cosine_similarity, exact=False, source=SOURCE)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    shape = torch.broadcast_shapes(x1.shape, x2.shape)
    if not shape and dim in (0, -1):  # torch takes scalars for vectors of one element
        return cosine_similarity(x1.reshape(1), x2.reshape(1), 0, eps)
    place = dim % len(shape) - len(shape)
    if any(-place > x.ndim or x.shape[place] != shape[place] for x in (x1, x2)):
        raise UnsupportedOperation(
            "", reason=f"one operand repeats its elements along dimension {dim}"
        )
    both: Any = torch.stack([x1.expand(shape), x2.expand(shape)]).movedim(place, -1)
    return Joint(
        (both,),
        lambda x: F.cosine_similarity(x[0], x[1], -1, eps),
        _cosine,
        None if both.cov.needs_functions else _composed_cosine,
    )


def _cosine(mean: Tensor, var: Tensor) -> Pair:
    """``a/√(st)`` with a product ``a`` and sums of squares ``s, t`` that depend on it."""
    working = torch.promote_types(mean.dtype, torch.float32)
    first, second = cosine(mean.to(working), var.to(working))
    certain = (var == 0).all(-1).all(0)
    plain = F.cosine_similarity(mean[0], mean[1], -1)
    return torch.where(certain, plain, first.to(mean.dtype)), second.to(mean.dtype)


def _composed_cosine(x: Any) -> Any:
    """The inner product of the directions; a cosine's mean ``c`` is within ±1, its variance ``≤ 1 - c²``."""
    y: Any = torch.sum(F.normalize(x[0], dim=-1) * F.normalize(x[1], dim=-1), -1)
    mean, var = y.loc, y.cov.var
    bounded = mean.clamp(-1, 1)
    most = torch.minimum(var, (1 - bounded) * (1 + bounded))
    if not torch.compiler.is_compiling() and bool(((mean == bounded) & (var == most)).all()):
        return y
    return matched(y, bounded, most)
