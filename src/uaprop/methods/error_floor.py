"""What the standard errors of a result cannot be smaller than.

Two things are invisible to samples. **Rounding**: an output ``y`` is computed to ``ρ = ε |y|/√12``, with the
spacing ``ε`` of its dtype, and a variance below the dtype's smallest normal number ``v₀`` is zero. Noise
smaller than that leaves all samples equal. As a variance that is not seen, ``ρ² + v₀`` changes a standard
deviation ``s`` by ``√(s² + ρ² + v₀) - s``.

**What did not happen**: if no one of ``n`` samples has left the linear region of a network, the probability
to leave it has a posterior mean of ``1/(n + 2)`` under a flat prior (Laplace's rule of succession; at most
about ``3/n`` at 95%, the rule of three). A sample that leaves moves an output by about its standard
deviation, so mean and standard deviation may be off by that share of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics.moments import root
from ..provenance import StandardError

__all__ = ["has_nonlinear", "not_left", "unrounded"]

_ROUNDINGS = 4  # of an output, to take a residual for nothing else
_NONLINEAR = ("_WithGain", "_Averaged")  # derivatives that are averages (covariance/response.py)


def unrounded(mean: Tensor, var: Tensor, error: StandardError, dtype: torch.dtype) -> StandardError:
    """Standard errors that are no smaller than what rounding hides.

    Args:
        mean: of the outputs.
        var: their variances.
        error: the standard errors of ``mean`` and ``√var``, of the same shape.
        dtype: that the model has computed its outputs in.

    Returns:
        At least ``√(ρ² + v₀)`` of the mean and ``√(var + ρ² + v₀) - √var`` of the standard deviation, which
        are never zero; those of an output that is not finite as they were.
    """
    finite = mean.isfinite() & var.isfinite()
    hidden = torch.where(finite, mean, 0).double().abs() * torch.finfo(dtype).eps
    hidden = hidden.square() / 12 + torch.finfo(error.std.dtype).tiny
    var = torch.where(finite, var, 1).double()
    least = hidden.sqrt(), hidden / ((var + hidden).sqrt() + root(var))
    return StandardError(
        *(
            torch.where(finite, torch.maximum(e, floor.to(e.dtype)), e)
            for e, floor in zip(error, least, strict=True)
        )
    )


def not_left(residual: Tensor, mean: Tensor, var: Tensor, samples: int) -> Tensor:
    """What an output may be off by if no sample has left the linear region; 0 if one has.

    Where an output has no variance at all, the size of a change is taken from the other outputs of its item;
    if none of them has any, nothing is known of it.

    Args:
        residual: the variance that the linear response does not explain, ``(batch, outputs)``.
        mean: of the outputs.
        var: their variances.
        samples: how many there were.

    Returns:
        ``s/(samples + 2)`` or 0, ``(batch, outputs)``.
    """
    std = root(var)
    rounding = _ROUNDINGS * torch.finfo(mean.dtype).eps * (mean.abs() + std)
    seen = (residual > rounding.square()) | ~mean.isfinite()
    varies = std > 0
    count = varies.sum(-1, keepdim=True).clamp_min(1)
    typical = (torch.where(varies, var, 0).sum(-1, keepdim=True) / count).sqrt()
    return torch.where(seen, 0, torch.where(varies, std, typical) / (samples + 2))


def has_nonlinear(output: Tensor) -> bool:
    """Whether an operation that is not linear has led to a tensor, by its graph of derivatives."""
    seen = set()
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith(_NONLINEAR):
            return True
        waiting += [function for function, _ in node.next_functions]
    return False
