"""Cases of functions of what is positive: roots, logarithms, quotients."""

from __future__ import annotations

from .table import Table

T = Table()
