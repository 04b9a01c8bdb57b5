"""Import transformers, also beside a torch that torchvision was not built for: as the tests do."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.models.packages import import_torchvision


def import_transformers() -> ModuleType:
    """The package transformers, with torchvision's operators declared where they are missing."""
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()
    return importlib.import_module("transformers")
