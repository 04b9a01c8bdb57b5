"""What versions of torch before the pinned one cannot do; docs/deployment.md has the table."""

from __future__ import annotations

import pytest
import torch

IS_CURRENT = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)

_REASON = "torch.compile takes modules and Gaussians from torch 2.13 on"
compiles = pytest.mark.skipif(not IS_CURRENT, reason=_REASON)


def skip_unless_compiles() -> None:
    """For functions that several tests compile by."""
    if not IS_CURRENT:
        pytest.skip(_REASON)
