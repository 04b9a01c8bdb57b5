"""Cases of attention, embeddings, gates and recurrent cells."""

from __future__ import annotations

from .table import Table

T = Table()
