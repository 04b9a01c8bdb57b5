"""Imports flow one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import uaprop

ROOT = Path(uaprop.__file__).parent
ORDER = [
    {"errors", "checksum"},
    {"numerics"},
    {"kinds", "records"},
    {"registry", "covariance"},
    {"rules"},
    {"dispatch"},
    {"operators", "statistic", "boundary", "attribution", "provenance", "description"},
    {"storage", "stored", "gaussian", "tensor_form", "files", "pytrees", "collate"},
    {"methods"},
    {"nn", "check", "deploy"},
    {"plot", "report", "demo"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def _imported(path: Path) -> set[str]:
    """Top-level parts of uaprop that a file imports."""
    package = path.relative_to(ROOT).parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            whole = [*base, *(node.module.split(".") if node.module else [])]
            found |= {whole[0]} if whole else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uaprop."):
            found.add((node.module or "").split(".")[1])
    return found


def test_imports_flow_one_way() -> None:
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for other in _imported(path) - {part}:
            assert RANK[other] <= RANK[part], f"{path.relative_to(ROOT)} imports {other}"


def test_rules_and_covariances_do_not_meet() -> None:
    for path in (ROOT / "rules").glob("*.py"):
        assert "covariance" not in _imported(path), path.name
    for path in (ROOT / "covariance").glob("*.py"):
        assert not _imported(path) & {"rules", "registry"}, path.name


FACTORIES = {
    *("tensor", "zeros", "ones", "empty", "full", "arange", "linspace", "eye"),
    *("rand", "randn", "randint", "randperm", "Generator"),
}


def test_tensors_are_made_on_a_device_that_is_named() -> None:
    """``torch.set_default_device`` is the user's: it says where the user's tensors go, not ours."""
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in ("plot", "report", "demo", "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch."):
                name = ast.unparse(node.func).removeprefix("torch.")
                named = any(keyword.arg in ("device", None) for keyword in node.keywords)
                if name in FACTORIES and not named and not (name == "Generator" and node.args):
                    raise AssertionError(f"{path.relative_to(ROOT)}:{node.lineno}: torch.{name}")


def test_import_needs_no_extras() -> None:
    """Nothing but torch and its own dependencies is loaded by ``import uaprop``."""
    code = (
        "import sys, uaprop; "
        "extras = {'matplotlib', 'rich', 'typer', 'sklearn', 'scipy', 'mpmath', 'PIL'}; "
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
