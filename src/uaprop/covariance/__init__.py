"""Representations of a covariance, one file each; every one knows the six kinds and no rule."""

from .base import Covariance
from .diagonal import Diagonal
from .empirical import Empirical

__all__ = ["Covariance", "Diagonal", "Empirical"]
