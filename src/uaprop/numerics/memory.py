"""Memory that torch gives back, and asks for again a moment later.

The C library hands the memory of large tensors back to the system as soon as they are freed, and the system
clears every page before it hands it out again: a third of the time of a pass over many draws. How much
glibc keeps instead follows the largest block that was ever freed, up to 32 MiB, of which it then keeps twice
that (``M_MMAP_THRESHOLD`` in mallopt(3)). So one block of that size, which nobody writes to, is asked for
and freed once, as any program does that has had one large tensor. Elsewhere this does nothing.
"""

from __future__ import annotations

import functools

import torch

__all__ = ["keep_freed"]

_LARGEST = 2**25 - 2**14  # bytes, and what surrounds them, of which the C library takes note


@functools.cache
def keep_freed() -> None:
    """Have some tens of megabytes of freed memory kept; once for the process."""
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")
