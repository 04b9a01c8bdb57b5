"""Maxima, minima and running sums."""

from __future__ import annotations
