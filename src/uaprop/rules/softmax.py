"""Softmax."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..kinds import Joint, Random
from ..numerics.softmax import softmax as softmax_moments
from ..registry import rule

T = torch.Tensor


@rule(F.softmax, exact=False, source="Schwartz & Yeh (1982) for the sums")
def softmax(input: Random, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Joint:
    if dim is None:
        raise ValueError("softmax: give the dimension, as in softmax(x, dim=1)")

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x if dtype is None else x.to(dtype)

    return Joint(
        (input,),
        function=lambda x: torch.softmax(x, dim, dtype=dtype),
        moments=lambda m, v: softmax_moments(cast(m), cast(v), dim),
    )


@rule(torch.softmax, T.softmax, torch.special.softmax, exact=False)
def torch_softmax(input: Random, dim: int, dtype: Any = None) -> Joint:
    return softmax(input, dim, dtype=dtype)
