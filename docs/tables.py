"""Tables that scripts write into pages, between two markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["insert", "markdown"]

PAGES = Path(__file__).parent


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; columns from ``left`` on are aligned to the right."""
    rule = [":--" if i < left else "--:" for i in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def insert(page: str, text: str, *, write: bool = True) -> bool:
    """Put text between a page's markers ``<!-- begin … -->`` and ``<!-- end -->``.

    Args:
        page: the page's file name.
        text: what belongs there.
        write: whether to change the page, or only to look.

    Returns:
        Whether the page already had it.
    """
    path = PAGES / page
    old = path.read_text(encoding="utf-8")
    pattern = re.compile(r"(<!-- begin[^>]*-->\n).*?(<!-- end -->)", re.DOTALL)
    new = pattern.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", old)
    if write and new != old:
        path.write_text(new, encoding="utf-8")
    return new == old
