"""torchvision's transforms on Gaussians: right, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua

from .lively import lively

SAMPLES = 4000


def v2() -> Any:
    from torchvision.transforms import v2

    return v2


LINEAR: dict[str, Callable[[], Any]] = {
    "normalize": lambda: v2().Normalize([0.5, 0.4, 0.3], [0.2, 0.1, 0.3]),
    "normalize-inplace": lambda: v2().Normalize([0.5] * 3, [0.2] * 3, inplace=True),
    "resize": lambda: v2().Resize(8),
    "resize-plain": lambda: v2().Resize(8, antialias=False),
    "resize-larger": lambda: v2().Resize((20, 24)),
    "resize-bicubic": lambda: v2().Resize(8, interpolation=v2().InterpolationMode.BICUBIC),
    "resize-nearest": lambda: v2().Resize(8, interpolation=v2().InterpolationMode.NEAREST),
    "center-crop": lambda: v2().CenterCrop(10),
    "center-crop-larger": lambda: v2().CenterCrop(20),
    "pad": lambda: v2().Pad(2, fill=0.3),
    "pad-reflect": lambda: v2().Pad(2, padding_mode="reflect"),
    "pad-edge": lambda: v2().Pad(2, padding_mode="edge"),
    "to-dtype": lambda: v2().ToDtype(torch.float64, scale=True),
    "to-dtype-same": lambda: v2().ToDtype(torch.float32, scale=True),
    "convert-image-dtype": lambda: v2().ConvertImageDtype(torch.float64),
    "horizontal-flip": lambda: v2().RandomHorizontalFlip(1.0),
    "vertical-flip": lambda: v2().RandomVerticalFlip(1.0),
    "grayscale": lambda: v2().Grayscale(),
    "grayscale-3": lambda: v2().Grayscale(3),
    "invert": lambda: v2().RandomInvert(1.0),
    "blur": lambda: v2().GaussianBlur(3, 1.0),
    "linear": lambda: v2().LinearTransformation(
        torch.eye(3 * 16 * 16) * 2, torch.ones(3 * 16 * 16)
    ),
    "identity": lambda: v2().Identity(),
    "compose": lambda: v2().Compose(
        [
            v2().Resize(12),
            v2().CenterCrop(8),
            v2().ToDtype(torch.float32, scale=True),
            v2().Normalize([0.5] * 3, [0.2] * 3),
        ]
    ),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "to-dtype-uint8": (lambda: v2().ToDtype(torch.uint8, scale=True), "cannot have the dtype"),
    "hue": (lambda: v2().ColorJitter(hue=0.3), "torch.aminmax in module 'ColorJitter'"),
    "solarize": (lambda: v2().RandomSolarize(0.5, 1.0), "in module 'RandomSolarize'"),
    "posterize": (lambda: v2().RandomPosterize(3, 1.0), "in module 'RandomPosterize'"),
    "equalize": (lambda: v2().RandomEqualize(1.0), "in module 'RandomEqualize'"),
    "to-image": (lambda: v2().ToImage(), "in module 'ToImage'"),
    "to-pil": (lambda: v2().ToPILImage(), "in module 'ToPILImage'"),
}


def image(*batch: int) -> ua.Gaussian:
    generator = torch.Generator().manual_seed(1)
    shape = (*batch, 3, 16, 16)
    std = 0.01 + 0.05 * torch.rand(shape, generator=generator)
    return ua.Gaussian(torch.rand(shape, generator=generator), std=std)


def exact(transform: Any, x: ua.Gaussian) -> tuple[Tensor, Tensor]:
    """Mean and variance by the transform's own matrix, a column for each element."""
    units = torch.eye(x.numel()).view(x.numel(), *x.shape)
    offset = transform(torch.zeros(x.shape)).double()
    columns = torch.stack([transform(unit.clone()).double() - offset for unit in units])
    var = x.cov.var.double().reshape(-1, *[1] * (columns.ndim - 1))
    return transform(x.loc.clone()).double(), (columns.square() * var).sum(0)


def test_several_crops_of_an_image_are_gaussians() -> None:
    crops = v2().FiveCrop(8)(image())
    assert [crop.shape for crop in crops] == [(3, 8, 8)] * 5
    torch.testing.assert_close(crops[0].var, image().var[..., :8, :8])


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_transform_is_exact(name: str) -> None:
    transform = LINEAR[name]()
    mean, var = exact(transform, image())
    y = transform(image())
    assert isinstance(y, ua.Gaussian)
    assert y.shape == mean.shape
    torch.testing.assert_close(y.loc.double(), mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(y.cov.var.double(), var, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_name(name: str) -> None:
    transform, words = REFUSED[name]
    with pytest.raises(ua.UnsupportedOperation, match=words):
        transform()(image())


def test_of_a_sample_the_image_is_transformed() -> None:
    label = torch.tensor(3)
    y, found = v2().Normalize([0.5] * 3, [0.2] * 3)(image(), label)
    assert found is label
    torch.testing.assert_close(y.cov.var, 25 * image().cov.var)
    sample = v2().CenterCrop(4)({"image": image(), "label": 3})
    assert sample["image"].shape == (3, 4, 4)


def test_coverage_lists_what_transforms_do() -> None:
    found = ua.coverage(LINEAR["compose"](), image())
    names = {operation.name.rpartition(".")[2] for operation in found.operations}
    assert {"interpolate", "sub", "div_"} <= names
    assert found.supported


class Network(nn.Module):
    def __init__(self, transform: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.transform = transform
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(self.transform(x))


@pytest.mark.parametrize("method", ["hybrid", "adjoint", "linear", "full", "auto"])
@pytest.mark.parametrize("kind", ["compose", "preset"])
def test_inside_of_a_model_they_are_right(method: str, kind: str) -> None:
    """Against Monte Carlo, which runs the transforms on tensors."""
    from torchvision.transforms._presets import ImageClassification

    transform = (
        LINEAR["compose"]()
        if kind == "compose"
        else ImageClassification(crop_size=8, resize_size=12)
    )
    model = Network(transform).eval()
    x = image(2)
    truth = ua.propagate(model, x, "samples", samples=SAMPLES)
    y = ua.propagate(model, x, method)
    torch.testing.assert_close(y.std.clone(), truth.std.clone(), rtol=0.15, atol=0)
    torch.testing.assert_close(y.loc, truth.loc, rtol=0.05, atol=0.02)


def test_the_transforms_of_weights_work_in_every_method() -> None:
    from torchvision.models import ResNet18_Weights

    transform = ResNet18_Weights.DEFAULT.transforms(crop_size=8, resize_size=12)
    mean, var = exact(transform, image())
    for method in ("diagonal", "full", "linear"):
        y = ua.propagate(transform, image(), method)
        torch.testing.assert_close(y.loc.double(), mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y.cov.var.double(), var, rtol=1e-3, atol=1e-6)
    assert ua.coverage(transform, image()).supported


def test_called_directly_they_refuse_a_gaussian() -> None:
    from torchvision.models import ResNet18_Weights

    with pytest.raises(TypeError, match="Gaussian"):
        ResNet18_Weights.DEFAULT.transforms()(image())
    with pytest.raises(TypeError, match=r"F\.normalize .*Gaussian"):
        v2().functional.normalize(image(), [0.5] * 3, [0.2] * 3)


def test_a_functional_transform_inside_of_a_model_is_right() -> None:
    def model(x: Any) -> Any:
        return v2().functional.normalize(v2().functional.center_crop(x, [4]), [0.5] * 3, [0.2] * 3)

    for method in ("diagonal", "full", "linear"):
        y = ua.propagate(model, image(), method)
        torch.testing.assert_close(y.cov.var, 25 * image()[:, 6:10, 6:10].cov.var)


def test_a_whole_pipeline_before_a_network() -> None:
    from torchvision.models import ResNet18_Weights, resnet18

    images = torch.randn(4, 3, 32, 32)
    network = lively(resnet18(weights=None), lambda model: model(images), 0)
    transform = ResNet18_Weights.DEFAULT.transforms(crop_size=32, resize_size=32)
    x = ua.Gaussian(torch.rand(1, 3, 40, 40), std=0.02)
    y = ua.propagate(nn.Sequential(transform, network), x, "linear", outputs=[0, 1])
    assert (y.std > 0).all()
