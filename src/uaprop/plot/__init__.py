"""The report's figures, drawn from the library itself. Needs ``uaprop[plot]``."""

from .figures import FIGURES, draw

__all__ = ["FIGURES", "draw"]
