"""Compare the moments of every scalar function with the oracle, for docs/accuracy.md.

Run from the repository: .venv/bin/python docs/accuracy.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tables import insert, markdown

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import oracle
from tests.test_moments import FUNCTIONS

NEGLIGIBLE = 1e-30


def largest_errors(name: str, dtype: str) -> list[float]:
    """Largest relative error of mean, gain and variance on the oracle's grid."""
    rows = oracle.load(dtype)[name]
    kind = getattr(torch, dtype)
    mean = torch.tensor([row[0] for row in rows], dtype=kind)
    var = torch.tensor([row[1] for row in rows], dtype=kind)
    errors = []
    for column, values in zip((2, 3, 4), FUNCTIONS[name](mean, var), strict=True):
        worst = 0.0
        for row, value in zip(rows, values.tolist(), strict=True):
            truth = row[column]
            if truth is None or not NEGLIGIBLE < abs(truth) <= torch.finfo(kind).max:
                continue
            if column == 2 and (row[1] == 0 or (name == "selu" and row[:2] == (0.0, 1.0))):
                continue  # torch's own value; a mean that is zero by design
            worst = max(worst, abs(value - truth) / abs(truth))
        errors.append(worst)
    return errors


def main() -> None:
    """Print the table and write it into the page."""
    header = ["function"]
    header += [f"{what}, {dtype}" for dtype in oracle.DTYPES for what in ("mean", "gain", "var")]
    rows = []
    for name in FUNCTIONS:
        errors = [error for dtype in oracle.DTYPES for error in largest_errors(name, dtype)]
        rows.append([f"`{name}`", *(f"{error:.0e}" for error in errors)])
    table = markdown(header, rows)
    print(table)
    insert("accuracy.md", table)


if __name__ == "__main__":
    main()
