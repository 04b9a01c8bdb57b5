"""Networks from images to images, trained on scikit-image's photographs when they are first needed.

Half a minute each. The measured crops come from photographs that they were not trained on.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from packages import installed
from PIL import Image
from subject import Subject, subject
from torch import Tensor, nn
from weights import trained

TRAINING = (
    "astronaut.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "hubble_deep_field.jpg",
    "ihc.png",
)
MEASURED = (
    ("chelsea.png", 96, 160),
    ("chelsea.png", 20, 300),
    ("coffee.png", 150, 250),
    ("coffee.png", 60, 120),
)
SIZE = 64
CAMERA = 0.05  # of the noise in the measured images
LEVELS = (0.01, 0.03, 0.1)
SOURCE = "trained on scikit-image's photographs (CC0)"


class UNet(nn.Module):
    """Two halvings, their inverses and skip connections (Ronneberger et al. 2015); adds to its input."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.fine = _pair(1, width)
        self.middle = _pair(width, 2 * width)
        self.coarse = _pair(2 * width, 4 * width)
        self.up_middle = _pair(6 * width, 2 * width)
        self.up_fine = _pair(3 * width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        y = self.up_middle(torch.cat([F.interpolate(coarse, scale_factor=2.0), middle], 1))
        y = self.up_fine(torch.cat([F.interpolate(y, scale_factor=2.0), fine], 1))
        return x + self.last(y)


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )


class Doubled(nn.Module):
    """An image of twice the width and height: sub-pixel convolutions (Shi et al. 2016) add detail."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2),
            nn.PReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.PReLU(),
            nn.Conv2d(width, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, x: Tensor) -> Tensor:
        plain = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        return plain + self.body(x)


def denoiser() -> Subject:
    """A U-Net that takes the noise out of grey images of 64 × 64: 4096 outputs."""
    photographs = [_photograph(name).mean(0, keepdim=True) for name in TRAINING]

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        clean = _crops(photographs, 8, generator)
        strength = 0.15 * torch.rand(len(clean), 1, 1, 1, generator=generator)
        noise = torch.randn(clean.shape, generator=generator)
        return F.mse_loss(model(clean + strength * noise), clean)

    clean = _measured().mean(1, keepdim=True)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(3))
    network = trained("denoiser", UNet, loss, steps=600)
    return _subject("denoiser", network, clean + CAMERA * noise)


def superresolution() -> Subject:
    """Colour images of 32 × 32 made 64 × 64: 12,288 outputs."""
    photographs = [_photograph(name) for name in TRAINING]

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        large = _crops(photographs, 8, generator)
        return F.mse_loss(model(F.avg_pool2d(large, 2)), large)

    network = trained("superresolution", Doubled, loss, steps=600)
    return _subject("superresolution", network, F.avg_pool2d(_measured(), 2))


def _subject(name: str, network: nn.Module, inputs: Tensor) -> Subject:
    model = nn.Sequential(network, nn.Flatten())
    return subject(name, model, inputs, inputs[:0], levels=LEVELS, source=SOURCE)


def _measured() -> Tensor:
    return torch.stack(
        [_photograph(name)[:, y : y + SIZE, x : x + SIZE] for name, y, x in MEASURED]
    )


def _crops(photographs: list[Tensor], count: int, generator: torch.Generator) -> Tensor:
    """Of random photographs at random positions, (count, channels, 64, 64)."""
    crops = []
    for _ in range(count):
        which, *at = torch.rand(3, generator=generator).tolist()
        image = photographs[int(which * len(photographs))]
        y, x = (int(a * (side - SIZE)) for a, side in zip(at, image.shape[1:], strict=True))
        crops.append(image[:, y : y + SIZE, x : x + SIZE])
    return torch.stack(crops)


def _photograph(name: str) -> Tensor:
    """(3, height, width) in [0, 1]."""
    with Image.open(installed("skimage") / "data" / name) as image:
        pixels = np.array(image.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
