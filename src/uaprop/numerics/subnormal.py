"""Numbers that are too small for a processor to be quick with.

Gains and gradients in the tails of a distribution are never zero, and multiplied by each other they are all
over the range in which numbers lose their digits. A convolution takes four to eight times as long if one in a
hundred is there.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["tame"]

SMALLEST = (
    2.0**16
)  # in units of the smallest normal number: products with weights shall be normal, too


def tame(*gradients: Tensor) -> tuple[Tensor, ...]:
    """Gradients, with zero in place of what is next to subnormal."""
    return tuple(
        torch.where(g.abs() < SMALLEST * torch.finfo(g.dtype).tiny, 0, g) for g in gradients
    )
