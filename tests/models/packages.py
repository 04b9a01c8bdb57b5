"""Import torchvision, timm and transformers, also beside a torch that torchvision was not built for.

torchvision's compiled part does not load there, and without it ``import torchvision`` stops at an operator
that no classifier or segmenter needs: non-maximum suppression. Its declaration is enough to go on.
"""

from __future__ import annotations

import importlib
import sys

import torch

__all__ = ["import_torchvision"]

_MISSING = "operator torchvision::nms does not exist"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept: list[torch.library.Library] = []  # a library's declarations end with it


def import_torchvision() -> None:
    """Import torchvision; where its operators are missing, declare them and import it again.

    Call it before timm and transformers, which import torchvision themselves.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            library.define(schema)
        _kept.append(library)
        importlib.import_module("torchvision")
