"""A compiled loop that takes long to compile; tests/test_fused.py has the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import uaprop as ua
from uaprop.numerics import clipped, compiled


def test_a_clamp_on_both_sides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UAPROP_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_loaded", {})
    size = torch.logspace(-20, 10, 31)
    mean, var = torch.meshgrid(
        torch.cat([-size, torch.zeros(1), size, torch.linspace(-9, 15, 49)]),
        torch.cat([torch.zeros(1), size]),
        indexing="ij",
    )
    with ua.fused(False):
        plain = clipped.clamp(mean, var, 0.0, 6.0)
    with ua.fused(True):
        fast = clipped.clamp(mean, var, 0.0, 6.0)
    assert len(compiled._loaded) == 1
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-30)
