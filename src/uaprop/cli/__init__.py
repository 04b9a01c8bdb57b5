"""The command line: ``uaprop``, or ``python -m uaprop``. Needs ``uaprop[cli]``."""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRAS = {
    **dict.fromkeys(("matplotlib", "PIL", "sklearn"), "plot"),
    **dict.fromkeys(("rich", "typer"), "cli"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
}


def main() -> None:
    """Run the command line; what a user can put right is said in one line, exit code 1.

    Raises:
        ModuleNotFoundError: if a module is missing that is in no extra.
    """
    try:
        from .app import app  # here, so that a missing extra can be explained

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        extra = _EXTRAS[package]
        sys.exit(f"uaprop: {package} is not installed; run: pip install 'uaprop[{extra}]'")
    except OSError as error:
        sys.exit(f"uaprop: {error}")
