"""Gaussians as items of a data set, put together to a batch by ``torch.utils.data``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from .gaussian import Gaussian

__all__: list[str] = []


def _stacked(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    return torch.stack(list(batch))


default_collate_fn_map[Gaussian] = _stacked  # torch's documented way to extend default_collate
torch.serialization.add_safe_globals([Gaussian])  # for torch.load(weights_only=True)
