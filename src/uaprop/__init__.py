"""Uncertainty through neural networks: a Gaussian goes in, a Gaussian comes out.

>>> import torch, uaprop as ua
>>> x = ua.Gaussian(torch.zeros(1, 4), std=0.1)
>>> torch.nn.Linear(4, 2)(x)  # doctest: +SKIP
"""

from . import kinds, nn, pytrees  # noqa: F401, pytrees registers Gaussians with torch
from .check import compare, coverage, flip_probability
from .dispatch.extend import rule
from .errors import UnsupportedOperation
from .gaussian import Gaussian
from .methods import Calibration, calibrate, propagate

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "Gaussian",
    "UnsupportedOperation",
    "calibrate",
    "compare",
    "coverage",
    "flip_probability",
    "kinds",
    "nn",
    "propagate",
    "rule",
]
