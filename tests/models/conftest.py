"""The packages that the models come from."""

from __future__ import annotations

import importlib.util

import pytest

from .packages import import_torchvision


@pytest.fixture(scope="session", autouse=True)
def _packages() -> None:
    for name in ("torchvision", "timm", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed; make test-models installs it")
    import_torchvision()
