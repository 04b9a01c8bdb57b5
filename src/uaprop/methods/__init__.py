"""Ways to propagate, one file each, all reached through :func:`propagate`."""

from .calibration import Calibration, calibrate
from .propagate import propagate

__all__ = ["Calibration", "calibrate", "propagate"]
