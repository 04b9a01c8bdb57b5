"""Write the numbers of the last ``make bench`` into docs/performance.md.

Run from the repository, after make bench: .venv/bin/python docs/performance.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tables import insert, markdown

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "latest.json"
TITLES = {
    "digits": "Digits CNN, batch of 24",
    "resnet18, average pooling": "ResNet-18, average pooling, batch of 4, 3 × 96 × 96",
    "resnet18, max pooling": "ResNet-18, max pooling, batch of 4, 3 × 96 × 96",
}


def methods(result: dict[str, Any]) -> str:
    """Times in forward passes, and errors where they were measured."""
    seconds, errors = result["seconds"], result.get("std_error", {})
    plain = seconds["plain forward pass"]
    header = ["method", "ms", "forward passes"] + (["error of the std"] if errors else [])
    rows = []
    for name, value in seconds.items():
        row = [name, f"{1e3 * value:.2f}", f"{value / plain:.1f}"]
        if errors:
            row.append(f"{100 * errors[name]:.1f}%" if name in errors else "")
        rows.append(row)
    return markdown(header, rows)


def main() -> None:
    """Write every table into the page."""
    results = json.loads(RESULTS.read_text())
    parts = [f"Measured on: {results['machine']}."]
    for key, title in TITLES.items():
        parts += [f"### {title}", methods(results[key])]
    parts.append("### Moments of scalar functions, ns per element")
    activations = results["activations"]
    header = ["function", *next(iter(activations.values()))]
    rows = [[f"`{k}`", *(f"{t:.1f}" for t in row.values())] for k, row in activations.items()]
    parts.append(markdown(header, rows))
    insert("performance.md", "\n\n".join(parts))


if __name__ == "__main__":
    main()
