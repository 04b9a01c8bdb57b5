"""The report's errata in numbers: as printed, as the library has it, and as sampled.

Run from the repository: .venv/bin/python docs/errata.py
It prints the table and writes it into docs/errata.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tables import insert, markdown
from torch import Tensor

import uaprop as ua

DRAWS = 4_000_000
BATCHES = 100
GENERATOR = torch.Generator().manual_seed(0)  # one for all rows: their errors are independent


class Row(NamedTuple):
    """One quantity at one point."""

    quantity: str
    printed: float
    corrected: float
    library: float
    sampled: float
    error: float


def printed_relu_variance(m: float, s: float) -> float:
    """Equation (20), word for word."""
    bell = math.exp(-m * m / (2 * s * s)) / math.sqrt(2 * math.pi)
    erf = 1 + math.erf(m / math.sqrt(2 * s * s))
    mean = s * bell + m / 2 * erf
    return (s * s + m * m) / 2 * erf - m * s * bell - mean**2


def printed_cross_entropy(m: float, s: float, y: int) -> float:
    """Equation (30), word for word."""
    p = 1 / (1 + math.exp(-m))
    return -math.log(p) - 0.5 * p * (1 - p) * s * s - (1 - y) * m


def sampled(
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    var: Tensor,
    statistic: Callable[..., Tensor],
) -> tuple[float, float]:
    """A statistic of ``function(x)`` over draws of ``x``, and its standard error over batches."""
    values = []
    for _ in range(BATCHES):
        noise = torch.randn(DRAWS // BATCHES, *mean.shape, generator=GENERATOR, dtype=mean.dtype)
        values.append(statistic(function(mean + var.sqrt() * noise)))
    batches = torch.stack(values)
    return float(batches.mean()), float(batches.std() / math.sqrt(BATCHES))


def scalar(value: float) -> Tensor:
    """A number in float64."""
    return torch.tensor(value, dtype=torch.float64)


def relu(m: float, v: float) -> Row:
    """Erratum 1 at one point."""
    mean, var = scalar(m), scalar(v)
    library = float(torch.relu(ua.Gaussian(mean, var)).var)
    return Row(
        f"1. Var relu, N({m:g}, {v:g})",
        printed_relu_variance(m, math.sqrt(v)),
        library,
        library,
        *sampled(torch.relu, mean, var, torch.var),
    )


def cross_entropy(m: float, v: float, y: int) -> Row:
    """Erratum 2 at one point."""
    mean, var, target = scalar(m), scalar(v), scalar(y)

    def loss(x: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x, target.expand_as(x), reduction="none")

    score = ua.Gaussian(mean, var)
    return Row(
        f"2. E BCE, N({m:g}, {v:g}), y = {y}",
        printed_cross_entropy(m, math.sqrt(v), y),
        float(ua.nn.UABCELoss("report")(score, target)),
        float(ua.nn.UABCELoss()(score, target)),
        *sampled(loss, mean, var, torch.mean),
    )


def pooling() -> Row:
    """Erratum 3 for one window of four."""
    var = torch.tensor([[[[0.5, 1.0], [1.5, 3.0]]]], dtype=torch.float64)
    mean = torch.zeros_like(var)
    return Row(
        "3. Var of the average of four, Σσ² = 6",
        float(var.sum() / 4),
        float(var.sum() / 16),
        float(ua.nn.UAAvgPool2d(2)(ua.Gaussian(mean, var)).var),
        *sampled(lambda x: x.flatten(1).mean(1), mean, var, torch.var),
    )


def sigmoid(m: float, v: float, lam: float, name: str) -> Row:
    """Erratum 4: the report's mean with a λ of the literature."""
    mean, var = scalar(m), scalar(v)
    x = ua.Gaussian(mean, var)
    return Row(
        f"4. E sigmoid, N({m:g}, {v:g}), λ = {name}",
        math.nan,
        float(ua.nn.UASigmoid("report", lam)(x).mean),
        float(ua.nn.UASigmoid()(x).mean),
        *sampled(torch.sigmoid, mean, var, torch.mean),
    )


def main() -> None:
    """Print the table and write it into the page."""
    rows = [
        relu(1, 1),
        relu(-1, 1),
        relu(0.5, 4),
        cross_entropy(1, 1, 0),
        cross_entropy(1, 1, 1),
        cross_entropy(-3, 4, 0),
        cross_entropy(0, 100, 1),
        pooling(),
        sigmoid(2, 9, 0.368, "0.368"),
        sigmoid(2, 9, 3 / math.pi**2, "3/π²"),
    ]
    table = markdown(
        ("quantity", "printed", "report, corrected", "library", "Monte Carlo ± s.e."),
        (
            (
                row.quantity,
                "–" if math.isnan(row.printed) else f"{row.printed:.4f}",
                f"{row.corrected:.4f}",
                f"{row.library:.4f}",
                f"{row.sampled:.4f} ± {row.error:.4f}",
            )
            for row in rows
        ),
    )
    print(table)
    insert("errata.md", table)


if __name__ == "__main__":
    main()
