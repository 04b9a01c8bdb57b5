"""Embeddings and gates."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random, Select
from ..registry import rule


def _refuse_random_index(input: Any) -> None:
    if isinstance(input, Random):
        raise UnsupportedOperation(
            "",
            reason="its input is an index, and a Gaussian is none",
            remedy="Give the part of the model after the embedding a Gaussian of embeddings, such as "
            "inputs_embeds=…; or make its weight a Gaussian.",
        )


def _refuse_max_norm(max_norm: float | None) -> None:
    if max_norm is not None:
        raise UnsupportedOperation(
            "",
            reason="max_norm divides the weights by their norms, which are random themselves, and writes "
            "the result to the weights",
            remedy="Rescale the weights before, or leave max_norm out.",
            pure=False,
        )


@rule(F.embedding)
def embedding(
    input: Tensor,
    weight: Random,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Select:
    _refuse_random_index(input)
    _refuse_max_norm(max_norm)
    return Select((weight,), lambda w: w[input])


@rule(F.embedding_bag)
def embedding_bag(
    input: Tensor,
    weight: Any,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Linear:
    _refuse_random_index(input)
    if isinstance(per_sample_weights, Random) or not isinstance(weight, Random):
        raise UnsupportedOperation(
            "",
            reason="random per_sample_weights have no rule",
            remedy="Write it as a product of them with F.embedding, and a sum.",
        )
    _refuse_max_norm(max_norm)
    if mode not in ("sum", "mean"):
        raise UnsupportedOperation(
            "",
            reason=f"mode={mode!r} is not linear",
            remedy='mode="sum" and mode="mean" have a rule.',
        )
    rows = weight.shape[0]
    dtype, device = weight.loc.dtype, weight.loc.device

    def counts() -> Tensor:
        """What each weight counts for in each bag: ``(bags, rows)``."""
        return F.embedding_bag(
            input,
            torch.eye(rows, dtype=dtype, device=device),
            offsets,
            mode=mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
        )

    matrix = counts()
    return Linear(
        (weight,),
        affine=lambda w: matrix @ w,
        linear=lambda w: matrix @ w,
        squared=lambda v: matrix.square() @ v,
    )


@rule(F.glu)
def glu(input: Any, dim: int = -1) -> Any:
    value, gate = input.chunk(2, dim)
    return value * torch.sigmoid(gate)
