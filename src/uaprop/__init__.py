"""Uncertainty through neural networks: a Gaussian goes in, a Gaussian comes out.

>>> import torch, uaprop as ua
>>> x = ua.Gaussian(torch.zeros(1, 4), std=0.1)
>>> torch.nn.Linear(4, 2)(x)  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from . import kinds, nn, pytrees  # noqa: F401, pytrees registers Gaussians with torch
from .dispatch.extend import rule
from .errors import UnsupportedOperation
from .gaussian import Gaussian
from .methods import Calibration, calibrate, propagate
from .numerics.compiled import fused

if TYPE_CHECKING:
    from .check.compare import compare
    from .check.coverage import coverage
    from .check.flip import flip_probability

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "Gaussian",
    "UnsupportedOperation",
    "calibrate",
    "compare",
    "coverage",
    "flip_probability",
    "fused",
    "kinds",
    "nn",
    "propagate",
    "rule",
]


def __getattr__(name: str) -> Any:
    """What checks an answer, imported when it is first asked for: most programs only propagate."""
    if name not in ("compare", "coverage", "flip_probability"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import check

    return getattr(check, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
