"""The demonstration itself: class probabilities of noisy digits, by both methods."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..gaussian import Gaussian
from ..methods import propagate
from .camera import GAIN, READ, camera
from .digits import digits_cnn, digits_images

__all__ = ["Comparison", "compare_digits"]

# Of the shipped digits: two that the noise often flips, three it makes doubtful, one it leaves.
_SHOWN = (0, 11, 18, 15, 20, 21)


@dataclass(frozen=True)
class Comparison:
    """Scores and class probabilities of the same noisy digits, by both methods.

    Attributes:
        labels: the true classes, (N,).
        pictures: the noisy input, (N, 1, 8, 8).
        seen: one draw of it.
        diagonal: class probabilities by the report's method, (N, 10).
        sampled: class probabilities by Monte Carlo, (N, 10).
        score_ratios: how many times smaller the report's method makes the deviations of the scores
            before the softmax, (N, 10).
    """

    labels: Tensor
    pictures: Gaussian
    seen: Tensor
    diagonal: Gaussian
    sampled: Gaussian
    score_ratios: Tensor

    @property
    def predicted(self) -> Tensor:
        """The class of the largest mean probability by the report's method, (N,)."""
        return self.diagonal.loc.argmax(1)

    @property
    def ratio(self) -> float:
        """The median of all score ratios."""
        return float(self.score_ratios.median())


def compare_digits(
    read: float = READ, gain: float = GAIN, samples: int = 5000, seed: int = 0
) -> Comparison:
    """Classify noisy digits by the report's method and by Monte Carlo.

    Args:
        read: deviation of the read noise, 1 is white.
        gain: variance of the shot noise at white.
        samples: Monte Carlo draws, at least 2.
        seed: makes the draws reproducible.

    Returns:
        Both answers.

    Raises:
        ValueError: if there is no noise at all.
    """
    if read == 0 and gain == 0:
        raise ValueError("there is no noise: the deviation and the gain are both 0")
    images, labels = digits_images()
    x = camera(images[list(_SHOWN)], read, gain)
    network = digits_cnn()

    def classify(x: Tensor) -> tuple[Tensor, Tensor]:
        scores = network(x)
        return scores, torch.softmax(scores, dim=1)

    scores, diagonal = propagate(classify, x)
    true_scores, sampled = propagate(classify, x, method="samples", samples=samples, seed=seed)
    return Comparison(
        labels=labels[list(_SHOWN)],
        pictures=x,
        seen=x.sample(generator=torch.Generator().manual_seed(seed))[0],
        diagonal=diagonal,
        sampled=sampled,
        score_ratios=(true_scores.cov.var / scores.cov.var).sqrt(),
    )
