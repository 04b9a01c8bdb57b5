"""Attention: products, a mask, a softmax and another product, one after the other."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Random, plain
from ..registry import rule
from .ratio import matched

_SOURCE = "its products and its softmax, one after the other"


def _any_random(*values: Any) -> bool:
    return any(isinstance(value, Random) for value in values)


def _split_mask(mask: Any, logits: Tensor) -> tuple[Tensor | None, Any]:
    """What is masked out, and what is added to the logits elsewhere."""
    if mask is None or isinstance(mask, Random):
        return None, mask
    if mask.dtype == torch.bool:
        return ~mask, None
    blocked = mask == -torch.inf
    return blocked, mask.masked_fill(blocked, 0).to(logits.dtype)


def _masked(logits: Any, blocked: Tensor | None, bias: Any) -> Any:
    if bias is not None:
        logits = logits + bias
    if blocked is not None:  # finite, but out of reach of any other logit
        logits = torch.where(blocked, torch.finfo(logits.dtype).min / 2, logits)
    return logits


def _weights(logits: Any, blocked: Tensor | None) -> Any:
    """Softmax; a row without any key gets no weights, as in torch."""
    weights = F.softmax(logits, -1)
    return weights if blocked is None else weights.masked_fill(blocked, 0.0)


def _dropped(weights: Any, p: float, like: Any) -> Any:
    if p > 0 and not isinstance(weights, Random):
        weights = weights + 0 * like.reshape(-1)[0]  # a constant in the representation of the pass
    return F.dropout(weights, p, True)


def _centre(tensor: Any, shares: Tensor) -> Tensor:
    """The average over keys, each as much as it is attended to."""
    average: Tensor = shares.unsqueeze(-2) @ plain(tensor)
    return average


def attend(
    query: Any,
    key: Any,
    value: Any,
    blocked: Tensor | None,
    bias: Any,
    dropout_p: float,
    scale: float,
) -> tuple[Any, Any]:
    """Attention over the second last dimension of key and value.

    A constant added to all keys adds the same to all logits of a row, and one added to all values is in the
    output as it is, since weights sum to one. So both are centred first, by their averages: exact for
    any covariance, and the one of independent elements then has little left to neglect.

    Args:
        query: ``(…, L, E)``.
        key: ``(…, S, E)``.
        value: ``(…, S, F)``.
        blocked: which keys a query does not see, or None; broadcasts with ``(…, L, S)``.
        bias: added to the logits, or None.
        dropout_p: of the weights.
        scale: of the logits.

    Returns:
        The output ``(…, L, F)`` and the weights ``(…, L, S)``.
    """
    at_means = torch.matmul(plain(query), plain(key).mT) * scale
    shares = _weights(_masked(at_means, blocked, plain(bias)), blocked).mean(-2)
    shares = shares / shares.sum(-1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
    logits = torch.matmul(query * scale, (key - _centre(key, shares)).mT)
    logits = _masked(logits, blocked, bias)
    weights = _weights(logits, blocked)
    if dropout_p > 0:
        weights = _dropped(weights, dropout_p, value if isinstance(value, Random) else query)
        return torch.matmul(weights, value), weights
    offset = _centre(value, shares)
    centred = value - offset
    output: Any = torch.matmul(weights, centred)
    if isinstance(weights, Random) and type(weights.cov).uncorrelated:
        output = matched(output, output.loc, _spread(logits, weights, centred))
    if blocked is not None:
        offset = offset * ~blocked.all(-1, keepdim=True)
    return output + offset, weights


def _spread(logits: Random, weights: Random, value: Any) -> Tensor:
    """The variance of an average of values, for logits that are independent of each other.

    The weights ``w`` are not: what one gains, the others lose. In ``δo = Σ w_j (V_j - o) δl_j`` to first
    order each logit has a share of its own, while ``Var[w_j]`` has one of every logit::

        Var[o] = Σ_j Var[w_j] v_j/((1 - 2w_j) v_j + Σ_k w_k² v_k) (V_j - o)² + Σ_j E[w_j²] Var[V_j]

    It is exact for two keys.

    Returns:
        A tensor of the output's shape.
    """
    mean, var, own = weights.loc, weights.cov.var, logits.cov.var
    total = (mean.square() * own).sum(-1, keepdim=True)
    all_of_it = (1 - 2 * mean) * own + total
    some = all_of_it > 0
    var = torch.where(some, var * own / torch.where(some, all_of_it, 1), 0)
    centre, output = plain(value), mean @ plain(value)
    result = var @ centre.square() - 2 * output * (var @ centre)
    result = (result + output.square() * var.sum(-1, keepdim=True)).clamp_min(0)
    if isinstance(value, Random):
        result = result + (mean.square() + weights.cov.var) @ value.cov.var
    return result


@rule(F.scaled_dot_product_attention, exact=False, source=_SOURCE)
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    if is_causal:
        if attn_mask is not None:
            raise ValueError("scaled_dot_product_attention: attn_mask or is_causal, not both")
        lengths = (query.shape[-2], key.shape[-2])
        attn_mask = torch.ones(lengths, dtype=torch.bool, device=plain(query).device).tril()
    blocked, bias = _split_mask(attn_mask, plain(query))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return attend(query, key, value, blocked, bias, dropout_p, factor)[0]


# ------------------------------------------------------------ nn.MultiheadAttention


def _projected(
    inputs: tuple[Any, Any, Any], weights: tuple[Any, Any, Any], bias: Any
) -> tuple[Any, Any, Any]:
    biases = (None, None, None) if bias is None else bias.chunk(3)
    q, k, v = (F.linear(*args) for args in zip(inputs, weights, biases, strict=True))
    return q, k, v


def _additive(mask: Any, dtype: torch.dtype) -> Any:
    """A mask that is true where a key is not seen, as something to add."""
    if mask is None or isinstance(mask, Random) or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _merged(attn_mask: Any, padding: Any, heads: int, extra: int, dtype: torch.dtype) -> Any:
    """Both masks, ``(batch, heads, L, S)`` or what broadcasts to it; ``extra`` keys are always seen."""
    attn_mask, padding = _additive(attn_mask, dtype), _additive(padding, dtype)
    if attn_mask is not None:
        attn_mask = F.pad(attn_mask, (0, extra))
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.unflatten(0, (-1, heads))
    if padding is None:
        return attn_mask
    padding = F.pad(padding, (0, extra))[:, None, None]
    return padding if attn_mask is None else attn_mask + padding


@rule(F.multi_head_attention_forward, exact=False, source=_SOURCE)
def multi_head_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    if _any_random(attn_mask, key_padding_mask):
        raise UnsupportedOperation("", reason="its mask is random")
    if static_k is not None or static_v is not None:
        raise UnsupportedOperation(
            "",
            reason="static_k and static_v have no rule",
            remedy="Call F.scaled_dot_product_attention on the projected tensors.",
        )
    if is_causal and attn_mask is None:
        raise ValueError("multi_head_attention_forward: is_causal needs attn_mask as well")
    batched = query.ndim == 3
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    matrices = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        matrices = in_proj_weight.chunk(3)
    q, k, v = _projected((query, key, value), matrices, in_proj_bias)
    if bias_k is not None:
        k = torch.cat([k, bias_k.repeat(1, k.shape[1], 1)])
        v = torch.cat([v, bias_v.repeat(1, v.shape[1], 1)])
    if add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 0, 0, 1)), F.pad(v, (0, 0, 0, 0, 0, 1))
    # (length, batch, heads · E) to (batch, heads, length, E)
    q, k, v = (x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for x in (q, k, v))
    extra = k.shape[-2] - key.shape[0]
    mask = _merged(attn_mask, key_padding_mask, num_heads, extra, plain(query).dtype)
    blocked, bias = _split_mask(mask, plain(q))
    rate = dropout_p if training else 0.0
    output, weights = attend(q, k, v, blocked, bias, rate, q.shape[-1] ** -0.5)
    output = F.linear(output.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    if average_attn_weights:
        weights = weights.mean(1)
    if not batched:
        output, weights = output.squeeze(1), weights.squeeze(0)
    return output, weights if need_weights else None


@rule(torch._nested_tensor_from_mask_left_aligned)
def left_aligned(t: Any, mask: Any) -> bool:
    return False  # nn.TransformerEncoder then keeps the padding, and a Gaussian is never nested
