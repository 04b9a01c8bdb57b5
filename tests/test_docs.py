"""The documentation's pages: what they render is there, and each thing is rendered once."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def rendered() -> list[str]:
    """What pages ask mkdocstrings for, by its dotted name."""
    return [
        name
        for page in PAGES
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def test_nothing_is_rendered_twice() -> None:
    """Else links have two targets, which is an error when the pages are built."""
    assert [name for name, count in Counter(rendered()).items() if count > 1] == []


def test_what_is_rendered_exists() -> None:
    for name in rendered():
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_formulas_are_no_links(page: Path) -> None:
    """E[r](1 − P) is a link to «1 − P» in Markdown, unless it is code."""
    text = re.sub(
        r"^(```.*?^```|(    |\t)[^\n]*)", "", page.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    text = re.sub(r"`[^`]*`", "", text)
    for target in re.findall(r"\]\(([^)]*)\)", text):
        assert " " not in target.partition(' "')[0], target


def test_the_documentation_tools_are_pinned() -> None:
    pinned = dict(
        re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    tools = {"mkdocs", "mkdocs-material", "mkdocs-autorefs", "mkdocstrings", "mkdocstrings-python"}
    assert tools | {"griffelib"} <= pinned.keys()
