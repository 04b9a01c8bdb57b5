"""Gaussians and ``torch.autocast``: moments are computed in their own dtype.

Autocast rounds the operands of products to half precision. A mean stands that; a variance in float16 becomes
zero below 6e-8, which is a deviation of 2e-4, and nothing would tell. So operations on Gaussians are among
those that autocast leaves in float32, as it does ``torch.cumsum`` or a loss.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch

__all__ = ["is_autocast", "outside_autocast"]


# Whether autocast is on, for any device; asked for every operation, and so torch's own function.
is_autocast = torch._C._is_any_autocast_enabled


@contextlib.contextmanager
def outside_autocast() -> Iterator[None]:
    """Turn autocast off, for every device."""
    if not is_autocast():
        yield
        return
    off = functools.partial(torch.autocast, enabled=False)
    with off("cpu"), off("cuda"), off("xpu"), off("mps"):
        yield
