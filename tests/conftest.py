"""Shared fixtures: deterministic random numbers and a quiet hypothesis."""

from __future__ import annotations

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
