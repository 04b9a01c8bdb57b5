"""Attention, embeddings and gates."""

from __future__ import annotations
