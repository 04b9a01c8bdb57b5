"""Does more samples mean closer to the truth? Errors of hybrid and of plain samples, 8 to 1024 of them.

Run from the repository: OMP_NUM_THREADS=1 .venv/bin/python benchmarks/convergence.py [NAME ...]
Half an hour. The truth is plain Monte Carlo (benchmarks/truth.py); its own error is not subtracted. The
tables are written into docs/convergence.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import torch
from subject import Subject
from torch import Tensor
from truth import Truth, truth
from zoo import digits, resnet20, resnet44, rnet

import uaprop as ua

LOADERS = (digits, rnet, resnet20, resnet44)
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
SEEDS = 512  # samples of each size in all, but one seed at least, and at most
MOST = 12
ITEMS = 4
TRUTH = 10_000
LEVEL = 1  # of the noise: the middle one
PAGE = Path(__file__).parents[1] / "docs" / "convergence.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="networks; all by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = []
    for load in LOADERS:
        if options.names and load.__name__ not in options.names:
            continue
        whole = load()
        subject = dataclasses.replace(whole, inputs=whole.inputs[:ITEMS])
        tables.append(table(subject))
        print(tables[-1], flush=True)
    if not options.names:
        head, _, _ = PAGE.read_text().partition("## Results")
        PAGE.write_text(f"{head}## Results\n\n" + "\n".join(tables))


def table(subject: Subject) -> str:
    """A row for each number of samples."""
    known = truth(subject, LEVEL, TRUTH)
    own = float((known.std_error / known.std).mean())
    rows = [
        f"### {subject.source.partition(';')[0]}: {subject.name}, noise {subject.labels[LEVEL]}\n",
        "| samples | hybrid: std | z | mean | z | plain samples: std | mean |",
        "| --: | --: | --: | --: | --: | --: | --: |",
    ]
    for size in SIZES:
        ours, plain = (errors(subject, known, method, size) for method in ("hybrid", "samples"))
        rows.append(
            f"| {size} | {ours[0]:.1%} ({ours[1]:+.1%}) | {ours[2]:.2f} | {ours[3]:.3f} | {ours[4]:.2f} "
            f"| {plain[0]:.1%} | {plain[3]:.3f} |"
        )
    return "\n".join(rows) + f"\n\nThe truth's standard deviations are known to {own:.1%}.\n"


def errors(subject: Subject, known: Truth, method: str, size: int) -> tuple[float, ...]:
    """Average error, bias and rms z of the standard deviations; average error and rms z of the means."""
    x = ua.Gaussian(subject.inputs, std=subject.noises[LEVEL])
    of_std, of_mean, z_std, z_mean = [], [], [], []
    for seed in range(max(1, min(MOST, SEEDS // size))):
        keys = range(len(subject.inputs))
        with torch.no_grad():
            y = ua.propagate(subject.model, x, method, samples=size, seed=seed, keys=keys)
        std, mean = y.std.double() - known.std, y.mean.double() - known.mean
        of_std.append(std / known.std)
        of_mean.append(mean / known.std)
        z_std.append(std / torch.hypot(y.standard_error.std.double(), known.std_error))
        z_mean.append(mean / torch.hypot(y.standard_error.mean.double(), known.mean_error))
    std = torch.stack(of_std)
    return (
        float(std.abs().mean()),
        float(std.mean()),
        _rms(z_std),
        float(torch.stack(of_mean).abs().mean()),
        _rms(z_mean),
    )


def _rms(values: list[Tensor]) -> float:
    return math.sqrt(float(torch.stack(values).square().mean()))


if __name__ == "__main__":
    main()
