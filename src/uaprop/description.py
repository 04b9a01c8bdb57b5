"""A Gaussian in one line of text."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .numerics.moments import root

__all__ = ["described"]


def described(x: Any) -> str:
    """Shape, dtype and method of a Gaussian; all its elements, or their range."""
    shape = "×".join(map(str, x.shape)) or "scalar"
    told = x.provenance
    kind = type(x.cov).__name__.lower() if told is None else told.method
    place = "" if x.device.type == "cpu" else f", {x.device}"
    head = f"Gaussian({shape}, {x.dtype}, {kind}{place}"
    if x.numel() == 0 or x.loc.is_meta:
        return head + ")"
    if x.numel() <= 8:
        return f"{head}, mean={_short(x.loc)}, std={_short(root(x.cov.var))})"
    means, stds = x.loc.detach(), root(x.cov.var.detach())
    return (
        f"{head}, mean in [{means.min():.4g}, {means.max():.4g}], "
        f"std in [{stds.min():.4g}, {stds.max():.4g}])"
    )


def _short(tensor: Tensor) -> str:
    return str([float(f"{value:.4g}") for value in tensor.detach().flatten().tolist()])
