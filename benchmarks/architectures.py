"""Networks of the zoo whose code is in no package, and shells around those whose code is."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut without parameters (He et al. 2016, option A)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.padding = (outputs - inputs) // 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        body = F.relu(self.bn1(self.conv1(x)))
        body = self.bn2(self.conv2(body))
        if self.stride != 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(body + x)


class CifarResNet(nn.Module):
    """ResNet for images (N, 3, 32, 32) and ten classes, with the zoo's parameter names.

    It has three layers of so many blocks: 3 in ResNet-20, 7 in ResNet-44.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._layer(16, 16, blocks)
        self.layer2 = self._layer(16, 32, blocks)
        self.layer3 = self._layer(32, 64, blocks)
        self.linear = nn.Linear(64, 10)

    @staticmethod
    def _layer(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
        rest = [Block(outputs, outputs) for _ in range(blocks - 1)]
        return nn.Sequential(Block(inputs, outputs), *rest)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(torch.flatten(F.avg_pool2d(x, 8), 1))


class JoinedOutputs(nn.Module):
    """The outputs of a network, side by side in one tensor."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.network(x), 1)


class ChosenOutputs(nn.Module):
    """Some of a network's outputs."""

    chosen: Tensor

    def __init__(self, network: nn.Module, chosen: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("chosen", chosen)

    def forward(self, x: Tensor) -> Tensor:
        return torch.index_select(self.network(x), 1, self.chosen)


class Logits(nn.Module):
    """CREPE without the sigmoid at its end."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        net: Any = self.network
        x = net.layer(net.embed(x), net.conv6, net.conv6_BN)
        return net.classifier(x.permute(0, 2, 1, 3).reshape(-1, net.in_features))
