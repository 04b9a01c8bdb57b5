"""Cases of maxima, sums that run on, windows, grids and further scalar functions."""

from __future__ import annotations

from .table import Table

T = Table()
