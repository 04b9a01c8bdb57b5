"""Softmax."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..kinds import Joint, Random
from ..numerics.softmax import softmax as softmax_moments
from ..registry import rule
from .pool import far_below

T = torch.Tensor


def _union(a: Any, b: Any) -> Any:
    """``log(eᵃ + eᵇ)``, whatever correlation the two have."""
    return b + F.softplus(a - b)


def _composed(input: Any, dim: int) -> Any:
    """``p_i = s(x_i - log Σ_{j≠i} e^{x_j})``; the sums from one balanced tree, up and down."""
    logits = input.movedim(dim, -1)
    count = logits.shape[-1]
    size = 1 << max(count - 1, 1).bit_length()
    if size > count:  # e⁻⁶⁰ adds nothing in any dtype
        logits = F.pad(logits, (0, size - count), value=far_below(logits) - 60)
    levels = [logits]
    while levels[-1].shape[-1] > 2:
        levels.append(_union(levels[-1][..., 0::2], levels[-1][..., 1::2]))
    rest = None
    for sums in reversed(levels):
        sibling = sums.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        rest = sibling if rest is None else _union(rest.repeat_interleave(2, -1), sibling)
    probabilities = torch.sigmoid(logits - rest)
    return probabilities[..., :count].movedim(-1, dim)


@rule(F.softmax, exact=False, source="Schwartz & Yeh (1982) for the sums")
def softmax(input: Random, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Joint:
    if dim is None:
        raise ValueError("softmax: give the dimension, as in softmax(x, dim=1)")

    def cast(x: Any) -> Any:
        return x if dtype is None else x.to(dtype)

    return Joint(
        (input,),
        function=lambda x: torch.softmax(x, dim, dtype=dtype),
        moments=lambda m, v: softmax_moments(cast(m), cast(v), dim),
        composed=lambda x: _composed(cast(x), dim),
    )


@rule(torch.softmax, T.softmax, torch.special.softmax, exact=False)
def torch_softmax(input: Random, dim: int, dtype: Any = None) -> Joint:
    return softmax(input, dim, dtype=dtype)
