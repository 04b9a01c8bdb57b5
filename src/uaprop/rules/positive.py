"""Roots, logarithms and quotients of what is positive."""

from __future__ import annotations
