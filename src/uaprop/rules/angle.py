"""The angle between vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Joint
from ..numerics.normalised import Normaliser, normalised
from ..registry import rule
from .normalise import SOURCE

Pair = tuple[Tensor, Tensor]


@rule(F.cosine_similarity, torch.cosine_similarity, exact=False, source=SOURCE)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    shape = torch.broadcast_shapes(x1.shape, x2.shape)
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
    (m, w), (v, u) = mean.to(working), var.to(working)

    def squares(m: Tensor, v: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        """Mean and variance of ``Σx²``, its covariance with ``a`` and with ``(a - E[a])²``."""
        return (
            (m.square() + v).sum(-1),
            (v * (4 * m.square() + 2 * v)).sum(-1),
            2 * (m * v * w).sum(-1),
            2 * (v.square() * (w.square() + u)).sum(-1),
        )

    s, s_var, s_cov, s_third = squares(m, v, w, u)
    t, t_var, t_cov, t_third = squares(w, u, m, v)
    parts = Normaliser(
        (m * w).sum(-1),
        (m.square() * u + v * w.square() + v * u).sum(-1),
        s * t_cov + t * s_cov,
        s * t_third + t * s_third + 2 * s_cov * t_cov,
        s * t,
        s.square() * t_var + t.square() * s_var + s_var * t_var,
    )
    first, second = normalised(parts)
    certain = ((v == 0) & (u == 0)).all(-1)
    plain = F.cosine_similarity(mean[0], mean[1], -1)
    return torch.where(certain, plain, first.to(mean.dtype)), second.to(mean.dtype)


def _composed_cosine(x: Any) -> Any:
    return torch.sum(F.normalize(x[0], dim=-1) * F.normalize(x[1], dim=-1), -1)
