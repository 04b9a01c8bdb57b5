"""What every contestant is asked: a network, its input, and which of the two is uncertain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from uaprop.demo import camera, digits_cnn, digits_images
from uaprop.demo.digits import WHITE

Moments = tuple[Tensor, Tensor]
Carry = Callable[[Tensor, Tensor | None], Moments]

TRAINED = 1500  # scikit-learn's digits that networks are trained on; the rest are for tests
OTHERS = 48  # of the rest, to calibrate with
EPOCHS, BATCH, RATE = 30, 50, 3e-3
WEIGHT_NOISE = 0.2  # deviation of a random weight, over its size
CHUNK = 250  # draws at once


@dataclass(frozen=True)
class Problem:
    """A network with a noisy input, or with noisy weights.

    Attributes:
        name: a word for it.
        title: what it is.
        model: linear layers, convolutions, ReLU and average pooling in sequence.
        mean: the input, (24, …).
        var: its variance; None if the weights are noisy.
        weight_noise: every weight's deviation over its size, zero if the input is noisy.
        others: other inputs with their variances, to calibrate with.
    """

    name: str
    title: str
    model: nn.Sequential
    mean: Tensor
    var: Tensor | None
    weight_noise: float
    others: tuple[Tensor, Tensor | None]

    @property
    def weights(self) -> list[Moments]:
        """Means and deviations of all parameters, in the model's order."""
        return [(p, self.weight_noise * p.abs()) for p in self.model.parameters()]

    def draw(self, samples: int) -> Tensor:
        """Outputs (samples, 24, 10) for draws of what is uncertain, all at once, as fast as torch can."""
        if self.var is None:
            return self._by_weights(samples)
        noise = torch.randn((samples, *self.mean.shape))
        inputs = torch.addcmul(self.mean, self.var.sqrt(), noise)
        return self.model(inputs.flatten(0, 1)).unflatten(0, (samples, -1))

    def _by_weights(self, samples: int) -> Tensor:
        drawn = iter(
            [
                torch.addcmul(mean, std, torch.randn((samples, *mean.shape)))
                for mean, std in self.weights
            ]
        )
        y = self.mean.expand(samples, *self.mean.shape)
        for layer in self.model:
            if isinstance(layer, nn.Linear):
                weight, bias = next(drawn), next(drawn)
                y = torch.baddbmm(bias[:, None], y, weight.mT)
            else:
                y = layer(y)
        return y


def moments(draws: Iterator[Tensor]) -> Moments:
    """Mean and variance in float64 of draws that come in chunks (chunk, …)."""
    count, total, squares, shift = 0, torch.zeros(()), torch.zeros(()), None
    for chunk in draws:
        shift = chunk.mean(0).double() if shift is None else shift  # so that nothing cancels
        centred = chunk.double() - shift
        count, total, squares = (
            count + len(chunk),
            total + centred.sum(0),
            squares + centred.square().sum(0),
        )
    assert shift is not None
    return shift + total / count, (squares - total.square() / count) / (count - 1)


def truth(problem: Problem, samples: int) -> Moments:
    """Monte Carlo with draws of its own."""
    torch.manual_seed(1_000_003)
    return moments(problem.draw(CHUNK) for _ in range(samples // CHUNK))


def problems() -> list[Problem]:
    """The three problems; the perceptron is trained on the way, in seconds."""
    images, _ = digits_images()
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32)[:, None] / WHITE
    tests = pictures[TRAINED:]
    others = tests[(tests[:, None] != images).flatten(2).any(2).all(1)][:OTHERS]
    model = perceptron(pictures[:TRAINED].flatten(1), torch.tensor(digits.target)[:TRAINED])
    flat, flat_others = images.flatten(1), others.flatten(1)
    return [
        Problem(
            "perceptron",
            "Perceptron 64, 128, 64, 10 with ReLU, camera noise",
            model,
            flat,
            _variance(flat),
            0.0,
            (flat_others, _variance(flat_others)),
        ),
        Problem(
            "cnn",
            "Digits CNN, camera noise",
            digits_cnn(),
            images,
            _variance(images),
            0.0,
            (others, _variance(others)),
        ),
        Problem(
            "weights",
            f"The perceptron with random weights, std {WEIGHT_NOISE:g} of their size",
            model,
            flat,
            None,
            WEIGHT_NOISE,
            (flat_others, None),
        ),
    ]


def _variance(pictures: Tensor) -> Tensor:
    return camera(pictures).var.as_subclass(Tensor)


def perceptron(images: Tensor, labels: Tensor) -> nn.Sequential:
    """Train the perceptron; the same torch and machine give the same weights."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    with torch.enable_grad():
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(images)).split(BATCH):
                loss = F.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval().requires_grad_(False)
