"""Windows of a tensor, and looking it up on a grid."""

from __future__ import annotations
