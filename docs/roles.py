"""A griffe extension: docstrings are written with Sphinx's roles, the pages are Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

__all__ = ["Roles"]

_ROLE = re.compile(r":\w+:`[~.]*([^`]+)`")


class Roles(Extension):
    """Turn :class:`~a.b.C` into `C` and a closing double colon into a single one."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite one object's docstring."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
