"""Representations of a covariance, one file each; every one knows the seven kinds and no rule.

Here are those that a Gaussian can have; the methods have more for their own use.
"""

from .base import Covariance
from .dense import Dense
from .diagonal import Diagonal
from .factors import Factors
from .finished import Finished
from .sources import Sources

__all__ = ["Covariance", "Dense", "Diagonal", "Factors", "Finished", "Sources"]
