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
    from .deploy.export import export
    from .deploy.module import as_module

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
    "nn",
    "propagate",
    "rule",
]


def __getattr__(name: str) -> Any:
    """What checks an answer or ships a model, imported when first asked for: most programs only propagate."""
    if name in ("as_module", "export"):
        from . import deploy

        return getattr(deploy, name)
    if name not in ("compare", "coverage", "flip_probability"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import check

    return getattr(check, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
