"""Cases of normalisation layers, norms and spreads."""

from __future__ import annotations

from .table import Table

T = Table()
