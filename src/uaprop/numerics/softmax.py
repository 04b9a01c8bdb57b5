"""Softmax of independent Gaussian logits.

Each probability is a sigmoid, ``p_i = s(x_i - L_i)`` with ``L_i = log Σ_{j≠i} e^{x_j}``. The
log-sum-exp of two Gaussians has exact moments through softplus,
``log(e^a + e^b) = h + softplus(l - h)``, and is nearly Gaussian again (the method of Schwartz & Yeh
1982 for sums of log-normals); the leave-one-out sums come from one balanced tree, up and down. With
two classes the result is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .logistic import sigmoid, softplus
from .maximum import Marginal, sharp_union

__all__ = ["softmax"]

_NOTHING = -1e30  # the logarithm of an empty sum, as far as any dtype can tell


def _add(a: Marginal, b: Marginal) -> Marginal:
    return sharp_union(softplus, a, b)


def softmax(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of softmax along ``dim``; same shapes as the logits'."""
    if mean.ndim == 0:
        return torch.ones_like(mean), torch.zeros_like(var)
    dtype = mean.dtype
    if dtype in (torch.float16, torch.bfloat16):
        value, spread = softmax(mean.float(), var.float(), dim)
        return value.to(dtype), spread.to(dtype)
    m, v = mean.movedim(dim, -1), var.movedim(dim, -1)
    count = m.shape[-1]
    size = 1 << max(count - 1, 0).bit_length()
    m_padded = torch.nn.functional.pad(m, (0, size - count), value=_NOTHING)
    v_padded = torch.nn.functional.pad(v, (0, size - count))
    levels: list[Marginal] = [(m_padded, v_padded)]
    while levels[-1][0].shape[-1] > 1:
        a, b = levels[-1]
        levels.append(_add((a[..., 0::2], b[..., 0::2]), (a[..., 1::2], b[..., 1::2])))
    rest: Marginal = (torch.full_like(levels[-1][0], _NOTHING), torch.zeros_like(levels[-1][1]))
    for sums in reversed(levels[:-1]):
        sibling = (_swap_pairs(sums[0]), _swap_pairs(sums[1]))
        outer = (rest[0].repeat_interleave(2, -1), rest[1].repeat_interleave(2, -1))
        rest = _add(outer, sibling)
    result = sigmoid(m - rest[0][..., :count], v + rest[1][..., :count])
    plain = torch.softmax(m, -1)
    certain = (v == 0).all(-1, keepdim=True)
    value = torch.where(certain, plain, result.mean)
    return value.movedim(-1, dim).contiguous(), result.var.movedim(-1, dim).contiguous()


def _swap_pairs(tensor: Tensor) -> Tensor:
    return tensor.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
