"""The demonstration itself: noisy digits by the default method, by the report's and by Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..check import compare
from ..gaussian import Gaussian
from ..methods import propagate
from .camera import GAIN, READ, camera
from .digits import digits_cnn, digits_images

__all__ = ["Comparison", "compare_digits", "forward_passes"]

# Of the shipped digits: two that the noise often flips, three it makes doubtful, one it leaves.
_SHOWN = (0, 11, 18, 15, 20, 21)
_SOFTMAX = 5000  # draws of scores; without the network they cost next to nothing
_FEW = 100  # draws, where only the time matters


@dataclass(frozen=True)
class Comparison:
    """Scores and class probabilities of the same noisy digits, by three methods.

    Attributes:
        labels: the true classes, (N,).
        pictures: the noisy input, (N, 1, 8, 8).
        seen: one draw of it.
        scores: class scores before the softmax by the default method, (N, 10), with covariance and
            attribution.
        default: their class probabilities, (N, 10).
        diagonal: class probabilities by the report's method, (N, 10).
        sampled: class probabilities by Monte Carlo, (N, 10).
        std_ratios: deviations of the scores over Monte Carlo's, by the default method and by the report's,
            (N, 10) each.
    """

    labels: Tensor
    pictures: Gaussian
    seen: Tensor
    scores: Gaussian
    default: Gaussian
    diagonal: Gaussian
    sampled: Gaussian
    std_ratios: tuple[Tensor, Tensor]

    @property
    def method(self) -> str:
        """The name of the method that the default chose."""
        told = self.scores.provenance
        assert told is not None
        return told.method

    @property
    def predicted(self) -> Tensor:
        """The class of the largest mean probability by the default method, (N,)."""
        return self.default.loc.argmax(1)

    @property
    def attribution(self) -> Tensor:
        """The share of the predicted score's variance that each pixel's noise causes, (N, 8, 8)."""
        rows = enumerate(self.predicted.tolist())
        parts = [self.scores.attribution(k)[n, 0] / self.scores.cov.var[n, k] for n, k in rows]
        return torch.stack(parts)

    @property
    def error(self) -> float:
        """How far the default method's deviations are from Monte Carlo's: the mean of |ratio - 1|."""
        return float((self.std_ratios[0] - 1).abs().mean())

    @property
    def ratio(self) -> float:
        """How many times too small the report's deviations are: the median over all scores."""
        return float((1 / self.std_ratios[1]).median())


def compare_digits(
    read: float = READ, gain: float = GAIN, samples: int = 5000, seed: int = 0
) -> Comparison:
    """Classify noisy digits by the default method, by the report's and by Monte Carlo.

    The default method gives the scores. A softmax bends them too much for a few draws to follow, but
    costs next to nothing: thousands of draws of the scores go through it.

    Args:
        read: deviation of the read noise, 1 is white.
        gain: variance of the shot noise at white.
        samples: Monte Carlo draws, at least 2.
        seed: makes the draws reproducible.

    Returns:
        All three answers.

    Raises:
        ValueError: if there is no noise at all.
    """
    x, labels = _noisy(read, gain)
    network = digits_cnn()

    def classify(x: Tensor) -> tuple[Tensor, Tensor]:
        scores = network(x)
        return scores, _softmax(scores)

    scores = propagate(network, x, seed=seed)
    report_scores, diagonal = propagate(classify, x, method="diagonal")
    true_scores, sampled = propagate(classify, x, method="samples", samples=samples, seed=seed)
    default = propagate(_softmax, scores, method="samples", samples=_SOFTMAX, seed=seed)
    ratios = [(y.cov.var / true_scores.cov.var).sqrt() for y in (scores, report_scores)]
    return Comparison(
        labels=labels,
        pictures=x,
        seen=x.sample(generator=torch.Generator().manual_seed(seed))[0],
        scores=scores,
        default=default,
        diagonal=diagonal,
        sampled=sampled,
        std_ratios=(ratios[0], ratios[1]),
    )


def forward_passes() -> float:
    """How long the default method takes on these digits, in plain forward passes, by the clock."""
    (row,) = compare(digits_cnn(), _noisy(READ, GAIN)[0], methods=["auto"], samples=_FEW).rows
    assert row.passes is not None
    return row.passes


def _noisy(read: float, gain: float) -> tuple[Gaussian, Tensor]:
    if read == 0 and gain == 0:
        raise ValueError("there is no noise: the deviation and the gain are both 0")
    images, labels = digits_images()
    return camera(images[list(_SHOWN)], read, gain), labels[list(_SHOWN)]


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=1)
