"""Normalisation by mean and spread; norms."""

from __future__ import annotations
