"""How far the rules for roots and normalisation are from Monte Carlo.

Run from the repository: .venv/bin/python docs/normalisation.py
It prints the tables and writes them into docs/theory/normalisation.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tables import insert, markdown
from torch import Tensor, nn

import uaprop as ua
from uaprop.numerics import positive

ROWS, DRAWS = 24, 40_000
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def roots() -> list[list[str]]:
    """Errors of mean, deviation and gain for means of ``n`` squares of N(a, 1)."""
    lines = []
    for count in (8, 32, 128):
        for offset in (0.0, 1.0):
            x = offset + normal(200_000, count)
            s = x.square().mean(-1)
            other = x.mean(-1) if offset else s
            mean = torch.tensor(offset**2 + 1, dtype=torch.float64)
            var = torch.tensor((4 * offset**2 + 2) / count, dtype=torch.float64)
            line = [str(count), f"{offset:g}"]
            for power in (0.5, -0.5):
                y, found = s**power, positive.power(mean, var, power)
                truth = float(
                    torch.stack([y, other]).cov()[0, 1] / torch.stack([s, other]).cov()[0, 1]
                )
                m = mean.clone().requires_grad_()
                (bonnet,) = torch.autograd.grad(positive.power(m, var, power).mean, m)
                line += [
                    f"{float((found.mean - y.mean()) / y.std()):+.3f}",
                    *(f"{100 * (float(a) - 1):+.1f}%" for a in
                      (found.var.sqrt() / y.std(), found.gain / truth, bonnet / truth)),
                ]  # fmt: skip
            lines.append(line)
    return lines


def errors(call: Callable[[Any], Any], x: ua.Gaussian, method: str) -> list[str]:
    """Root mean square and largest error of the deviations, largest error of the means."""
    truth = ua.propagate(call, x, method="samples", samples=DRAWS)
    rows = [ua.propagate(call, x[i : i + 1], method=method) for i in range(ROWS)]
    mean, std = (torch.cat([getattr(y, a) for y in rows]) for a in ("loc", "std"))
    off, shift = std / truth.std - 1, (mean - truth.loc) / truth.std
    relative = (off.square().mean().sqrt(), off.abs().max())
    return [*(f"{100 * float(e):.1f}%" for e in relative), f"{float(shift.abs().max()):.3f}"]


def layers() -> list[list[str]]:
    """Errors of layer normalisation: independent elements, after a layer, and with shared noise."""
    lines = []
    for count in (4, 8, 16, 64):
        weight = normal(count, count) / count**0.5
        plain = functools.partial(F.layer_norm, normalized_shape=(count,))
        mixed = nn.Sequential(nn.Linear(count, count, False), nn.LayerNorm(count)).double()
        mixed[0].weight.data = weight
        mixed.requires_grad_(False)
        for noise in (0.3, 1.0, 3.0):
            var = noise**2 * (0.25 + 1.5 * torch.rand(ROWS, count, generator=GENERATOR).double())
            x = ua.Gaussian(normal(ROWS, count), var)
            shared = ua.Gaussian.from_factors(x.loc, noise / 3**0.5 * normal(3, ROWS, count))
            found = (errors(plain, x, "diagonal"), errors(mixed, x, "full"))
            lines.append(
                [str(count), f"{noise:g}", *found[0], *found[1], *errors(plain, shared, "full")]
            )
    return lines


def main() -> None:
    """Print the tables and put them into the page."""
    header = [
        "n",
        "a",
        *(f"{f}: {e}" for f in ("√s", "1/√s") for e in ("mean", "std", "gain", "∂E/∂m")),
    ]
    first = markdown(header, roots(), left=0)
    names = [
        f"{k}: {e}" for k in ("independent", "x W", "shared") for e in ("rms", "largest", "mean")
    ]
    second = markdown(["n", "noise", *names], layers(), left=0)
    text = f"{first}\n\n{second}"
    print(text)
    insert("theory/normalisation.md", text)


if __name__ == "__main__":
    main()
