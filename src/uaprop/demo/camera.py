"""The demonstration's noise: what a camera adds to a picture."""

from __future__ import annotations

from torch import Tensor

from ..gaussian import Gaussian

__all__ = ["GAIN", "READ", "camera"]

READ = 0.15
"""Default deviation of the read noise, where 1 is white."""
GAIN = 0.04
"""Default shot noise: the variance that a white pixel's light brings along."""


def camera(pictures: Tensor, read: float = READ, gain: float = GAIN) -> Gaussian:
    """Pictures as a camera sees them: ``var = read² + gain · intensity``, independent pixels.

    Read noise comes from the electronics and is the same everywhere; shot noise is the light's own,
    and its variance is proportional to the light (EMVA 1288).

    Args:
        pictures: intensities, 0 is black and 1 is white.
        read: the read noise's deviation.
        gain: the shot noise's variance at white.

    Returns:
        A Gaussian of the pictures' shape.
    """
    return Gaussian(pictures, read**2 + gain * pictures)
