"""Numbers that are too small for a processor to be quick with.

Gains and gradients in the tails of a distribution are never zero, and multiplied by each other they are all
over the range in which numbers lose their digits. A convolution takes four to eight times as long if one in a
hundred is there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["LIFT", "normal", "tame"]

SMALLEST = (
    2.0**16
)  # in units of the smallest normal number: products with weights shall be normal, too
LIFT = 2.0**32
"""A factor for what is multiplied by small gradients, so that no product on the way is subnormal either."""


def tame(*gradients: Tensor, lift: float = 1.0) -> tuple[Tensor, ...]:
    """Gradients, with zero in place of what is next to subnormal.

    Args:
        *gradients: of any shapes.
        lift: by what power of two they are too large, which is taken back.

    Returns:
        Tensors of the same shapes.
    """
    # one pass over memory, where comparing and choosing would be three
    found = [F.hardshrink(g, SMALLEST * torch.finfo(g.dtype).tiny * lift) for g in gradients]
    return tuple(found if lift == 1 else [g * (1 / lift) for g in found])


def normal(value: Tensor) -> Tensor:
    """Numbers that are not negative, with zero in place of subnormal ones, which have lost their digits."""
    return torch.where(value < torch.finfo(value.dtype).tiny, 0, value)
