"""Checks of the options that several methods share."""

from __future__ import annotations

from typing import Any

__all__ = ["whole_number", "whole_numbers_if_given"]


def whole_number(name: str, value: Any, least: int) -> int:
    """``value`` if it is a whole number and at least ``least``.

    Returns:
        The number.

    Raises:
        TypeError: if it is not a whole number.
        ValueError: if it is too small.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def whole_numbers_if_given(**options: Any) -> None:
    """Check options that may be None and are whole numbers from 1 on otherwise."""
    for name, value in options.items():
        if value is not None:
            whole_number(name, value, 1)
