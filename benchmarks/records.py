"""Results of benchmarks in JSON files, a record for each network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["read", "write"]


def read(path: Path) -> dict[str, Any]:
    """All results; none if there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, name: str, record: dict[str, Any], order: Iterable[str]) -> None:
    """Replace one network's record; the others stay, also those that were measured meanwhile.

    Args:
        path: the file.
        name: the network.
        record: what was measured of it.
        order: names of all networks; what is not among them is left out.
    """
    results = read(path)
    networks = results.setdefault("networks", {})
    networks[name] = rounded(record)
    results["networks"] = {key: networks[key] for key in order if key in networks}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(results, indent=1) + "\n")
    unfinished.replace(path)


def rounded(value: Any) -> Any:
    """Numbers to four digits, so that a new run changes no more than it has to."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value
