"""Uncertainty through neural networks: a Gaussian goes in, a Gaussian comes out.

>>> import torch, uaprop as ua
>>> x = ua.Gaussian(torch.zeros(1, 4), std=0.1)
>>> torch.nn.Linear(4, 2)(x)  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import collate, kinds, nn, pytrees  # noqa: F401, register Gaussians with torch
from .dispatch.extend import rule
from .errors import UnsupportedOperation
from .gaussian import Gaussian
from .methods import propagate
from .numerics.compiled import fused

if TYPE_CHECKING:
    from .check.compare import compare
    from .check.coverage import coverage
    from .check.flip import flip_probability
    from .deploy.export import export
    from .deploy.module import as_module
    from .files import load
    from .methods.calibrate import calibrate
    from .methods.calibration import Calibration

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "Gaussian",
    "UnsupportedOperation",
    "as_module",
    "calibrate",
    "compare",
    "coverage",
    "export",
    "flip_probability",
    "fused",
    "kinds",
    "load",
    "nn",
    "propagate",
    "rule",
]


_ELSEWHERE = {
    "Calibration": "methods.calibration",
    "as_module": "deploy.module",
    "calibrate": "methods.calibrate",
    "compare": "check.compare",
    "coverage": "check.coverage",
    "export": "deploy.export",
    "flip_probability": "check.flip",
    "load": "files",
}


def __getattr__(name: str) -> Any:
    """What fits or checks an answer or ships a model, imported when first asked for: most programs do not."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ELSEWHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
