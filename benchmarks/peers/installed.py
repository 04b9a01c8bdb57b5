"""The peers' packages, each in a folder of its own beside this project's torch."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "peers"
PACKAGES = {
    "torch-adf": "22.1.0",
    "fastbnns": "0.4.3",
    "suq": "0.1.0",
    "bayesian-torch": "0.5.0",
    "pytagi": "0.1.12",  # 0.2 needs a library of Open MPI
}
MINUTES = 3  # that pip may take


@dataclass(frozen=True)
class Missing:
    """Why a peer is not there."""

    reason: str


def load(name: str) -> ModuleType | Missing:
    """Install a peer if need be, and import the file here that knows how to call it.

    Without their dependencies: all they import is torch, numpy and tqdm, which are there, and none wants
    another version of them. So all peers run in one process, and can take turns.

    Args:
        name: the package's name on PyPI.

    Returns:
        The module ``…_peer`` of this folder; or what went wrong.
    """
    place = FOLDER / f"{name}-{PACKAGES[name]}"
    if not place.exists() and (reason := _install(name, place)):
        return Missing(f"not installed: {reason}")
    sys.path.append(str(place))
    try:
        return importlib.import_module(f"{name.replace('-', '_')}_peer")
    except ImportError as error:
        return Missing(f"not importable: {error}")


def _install(name: str, place: Path) -> str | None:
    """Install a peer with pip; what pip said last, if it could not."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "1"]
    unfinished = place.with_suffix(".unfinished")
    command += ["--target", str(unfinished), f"{name}=={PACKAGES[name]}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        return f"pip took more than {MINUTES} minutes"
    if done.returncode == 0:
        unfinished.rename(place)
        return None
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or ["pip failed"])[-1].removeprefix("ERROR: ")
