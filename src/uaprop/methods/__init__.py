"""Ways to propagate, one file each, all reached through :func:`propagate`."""

from .propagate import propagate

__all__ = ["propagate"]
