"""The networks that are timed, with weights that let their outputs depend on their inputs."""

from __future__ import annotations

import importlib
import importlib.util
import os

import torch
from networks import resnet18
from shims import import_torchvision
from torch import Tensor, nn

from tests.models.lively import lively

CORES = os.cpu_count() or 1
STD = 0.1  # of the noise, on inputs of deviation 1


def picture_classifier() -> tuple[str, nn.Module]:
    """ResNet-18: where it comes from, and the network. torchvision's where that is installed."""
    torch.manual_seed(0)
    if importlib.util.find_spec("torchvision") is None:
        source, model = "our own copy", resnet18(nn.MaxPool2d(3, 2, 1))
    else:
        import_torchvision()
        models = importlib.import_module("torchvision.models")
        source, model = "torchvision's", models.resnet18()
    lively(model, lambda network: network(pictures(2)), seed=0)
    return source, model.requires_grad_(False)


def pictures(count: int, size: int = 224) -> Tensor:
    """Random inputs, (count, 3, size, size), of mean 0 and deviation 1."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def plain_cnn(depth: int, width: int, outputs: int) -> nn.Sequential:
    """``depth`` convolutions of 3 × 3 with ReLU, the average of each channel, a linear layer."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for layer in range(depth):
        layers += [nn.Conv2d(width if layer else 3, width, 3, padding=1), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, outputs)]
    model = nn.Sequential(*layers)
    for module in model[:-1]:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)  # neither vanishing nor exploding with depth
    return model.eval().requires_grad_(False)
