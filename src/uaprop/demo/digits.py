"""A trained digits classifier and test digits, shipped as safetensors.

`examples/train_digits.py` makes both files from scikit-learn's digits.
"""

from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor, nn

WEIGHTS = "digits.safetensors"
IMAGES = "digits_test.safetensors"
WHITE = 16
"""The brightest raw pixel value of scikit-learn's digits; images in [0, 1] are raw / WHITE."""


def architecture() -> nn.Sequential:
    """Build the untrained classifier: images (N, 1, 8, 8) to class scores (N, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def digits_cnn() -> nn.Sequential:
    """Load the trained classifier, ready for inference.

    Returns:
        The network in eval mode, on the CPU in float32, its weights without gradients. It takes
        images (N, 1, 8, 8) in [0, 1] and gives class scores (N, 10), before the softmax.
    """
    # Weights are about to be replaced: build without drawing from the caller's random numbers.
    with torch.device("meta"):
        model = architecture()
    model.load_state_dict(_read(WEIGHTS), assign=True)
    return model.eval().requires_grad_(False)


def digits_images() -> tuple[Tensor, Tensor]:
    """Load test digits that the classifier was not trained on.

    Returns:
        Float32 images (24, 1, 8, 8) in [0, 1] and their int64 labels (24,).
    """
    stored = _read(IMAGES)
    return stored["images"].to(torch.float32) / WHITE, stored["labels"].to(torch.int64)


def _read(name: str) -> dict[str, Tensor]:
    """Read the tensors of a file in this package, also where the package is zipped."""
    return load(files("uaprop.demo").joinpath(name).read_bytes())
