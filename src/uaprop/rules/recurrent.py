"""Recurrent networks, cell by cell."""

from __future__ import annotations
