"""Representations of a covariance, one file each; every one knows the six kinds and no rule."""

from .base import Covariance
from .calibrated import Calibrated, Fitting
from .diagonal import Diagonal
from .ensemble import Ensemble
from .factors import Factors
from .finished import Finished
from .full import Full
from .sources import Sources

__all__ = [
    "Calibrated",
    "Covariance",
    "Diagonal",
    "Ensemble",
    "Factors",
    "Finished",
    "Fitting",
    "Full",
    "Sources",
]
