"""MTCNN's three networks on one batch of faces, as a camera delivers them.

MTCNN looks at a picture three times: P-Net scans it for squares of 12 × 12, R-Net looks at 24 × 24 and
O-Net at 48 × 48 of what is left. Each gets the same faces of 24 × 24 noisy pixels, brought to its size as
MTCNN does it.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from architectures import JoinedOutputs
from packages import borrowed, installed
from subject import Subject, subject
from torch import Tensor, nn

FACENET = "facenet_pytorch.models"
SOURCE = "facenet-pytorch (MIT); Labeled Faces in the Wild, from scikit-image"


class Resized(nn.Module):
    """A network behind MTCNN's own change of size."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        resized = F.interpolate(x, size=(self.size, self.size), mode="area")
        return torch.flatten(self.network(resized), 1)  # P-Net's answer is a map of one pixel


def pnet() -> Subject:
    """P-Net: convolutions, PReLU, max-pooling, softmax. Four box offsets, no face, face."""
    return _mtcnn("pnet", Resized(JoinedOutputs(_network("PNet")), 12))


def pnet_scores() -> Subject:
    """The same before the softmax."""
    return _mtcnn("pnet_scores", Resized(JoinedOutputs(_network("PNet", scores=True)), 12))


def rnet() -> Subject:
    """R-Net: PReLU, max-pooling, softmax. Four box offsets, no face, face."""
    return _mtcnn("rnet", JoinedOutputs(_network("RNet")))


def rnet_scores() -> Subject:
    """The same before the softmax."""
    return _mtcnn("rnet_scores", JoinedOutputs(_network("RNet", scores=True)))


def onet() -> Subject:
    """O-Net: the same, deeper. Four box offsets, five landmarks' coordinates, no face, face."""
    return _mtcnn("onet", Resized(JoinedOutputs(_network("ONet")), 48))


def onet_scores() -> Subject:
    """The same before the softmax."""
    return _mtcnn("onet_scores", Resized(JoinedOutputs(_network("ONet", scores=True)), 48))


def _network(name: str, scores: bool = False) -> nn.Module:
    package = installed("facenet_pytorch")
    # The networks' file imports functions that cut faces out of pictures, by torchvision.
    cutting = {f"{FACENET}.utils.detect_face": SimpleNamespace(detect_face=None, extract_face=None)}
    mtcnn = borrowed(f"{FACENET}.mtcnn", package / "models" / "mtcnn.py", cutting)
    network = getattr(mtcnn, name)(pretrained=False)
    weights = package / "data" / f"{name.lower()}.pt"
    network.load_state_dict(torch.load(weights, weights_only=True))
    if scores:
        (softmax,) = (k for k, v in network.named_children() if isinstance(v, nn.Softmax))
        setattr(network, softmax, nn.Identity())
    return network


def _mtcnn(name: str, model: nn.Module) -> Subject:
    # 100 faces in [0, 1], grey and 25 × 25; the last row and column are cut off.
    faces = torch.from_numpy(np.load(installed("skimage") / "data" / "lfw_subset.npy"))
    crops = faces[:36, None, :24, :24].float().expand(-1, 3, -1, -1)
    scaled = (crops * 255 - 127.5) / 128
    return subject(
        name,
        model,
        scaled[:12],
        scaled[12:],
        levels=(0.01, 0.03, 0.1),
        unit=255 / 128,
        source=SOURCE,
    )
