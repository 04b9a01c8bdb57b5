"""Shared fixtures: deterministic random numbers and a quiet hypothesis."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import torch

import uaprop as ua

hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="session")
def _nothing_compiled() -> Iterator[None]:
    """Whatever this computer has compiled before; tests/test_fused.py compiles for itself."""
    with ua.fused(False):
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
