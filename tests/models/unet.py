"""A small U-Net: the shape of networks that answer with a picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["UNet"]


class UNet(nn.Module):
    """Two levels down and up again, with a shortcut at each; one way up is learnt, the other bilinear."""

    def __init__(self, width: int = 8, channels: int = 3, classes: int = 2) -> None:
        super().__init__()
        self.first = _block(channels, width)
        self.second = _block(width, 2 * width)
        self.bottom = _block(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.third = _block(4 * width, 2 * width)
        self.fourth = _block(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(self.pool(first))
        bottom = self.bottom(self.pool(second))
        third = self.third(torch.cat([self.up(bottom), second], 1))
        third = nn.functional.interpolate(third, scale_factor=2, mode="bilinear")
        return self.head(self.fourth(torch.cat([third, first], 1)))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(4, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
