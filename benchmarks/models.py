"""Every method on networks that others trained, against Monte Carlo: `ua.compare` on each.

Run from the repository: make bench-models, or
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/models.py [NAME ...]

Every network's part of benchmarks/results/models.json is replaced when it has been measured, so
networks can be run one at a time. docs/models.py writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import minilm
import torch
from packages import PACKAGES
from subject import Subject
from zoo import pretrained

import uaprop as ua

RESULTS = Path(__file__).parent / "results" / "models.json"
LEVEL = 1  # the middle one of a subject's three strengths of noise
CALIBRATION_DRAWS = 64

# Draws that count as the truth: a standard deviation of Gaussian outputs is then known to 1.6% or, of
# the quick ones, to 1.0%. Those are timed three times, the others once.
DRAWS = 2_000
QUICK = {"pnet", "pnet_scores", "rnet", "rnet_scores"}
QUICK_DRAWS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="networks; all by default")
    names = parser.parse_args().names
    if unknown := set(names) - set(pretrained()):
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(pretrained())}")
    torch.set_num_threads(1)
    for name in names or pretrained():
        start = time.perf_counter()
        subject = pretrained()[name]()
        record, comparison = measure(subject)
        write(name, record)
        print(f"{name}, {subject.labels[LEVEL]}\n\n{comparison}\n", flush=True)
        print(f"{name} took {time.perf_counter() - start:.0f} s\n", flush=True)
    print(f"Numbers: {RESULTS}")


def measure(subject: Subject) -> tuple[dict[str, Any], ua.Comparison]:
    """Compare the methods on one network."""
    draws, repeats = (QUICK_DRAWS, 3) if subject.name in QUICK else (DRAWS, 1)
    x = ua.Gaussian(subject.inputs, std=subject.noises[LEVEL])
    comparison = ua.compare(subject.model, x, methods(subject), samples=draws, repeats=repeats)
    with torch.no_grad():
        answer = subject.model(subject.inputs)
    record = {
        "source": subject.source,
        "noise": subject.labels[LEVEL],
        "inputs": list(subject.inputs.shape),
        "outputs": list(answer.shape),
        "machine": f"{platform.machine()}, one thread, torch {torch.__version__}",
        "versions": versions(),
        "table": str(comparison).splitlines(),
        "comparison": comparison.to_dict(),
    }
    if subject.name == "minilm_similarity":
        record["rounded"] = rounded(subject, x)
    return record, comparison


def methods(subject: Subject) -> dict[str, Any]:
    """What takes part: every method that a user would choose from, and the default's choice."""
    chosen: dict[str, Any] = {"diagonal": "diagonal"}
    if len(subject.others):
        # To other inputs than the measured ones; fitting is not part of its cost.
        calibration = ua.calibrate(
            subject.model, subject.others, std=subject.noises[LEVEL], samples=CALIBRATION_DRAWS
        )
        chosen["calibrated"] = ("calibrated", {"calibration": calibration})
    return chosen | {
        "linear": "linear",
        "sketch, 16 probes": ("sketch", {"probes": 16}),
        "adjoint, 16 probes": ("adjoint", {"probes": 16}),
        "hybrid, 16 draws": ("hybrid", {"samples": 16}),
        "auto": "auto",
    }


def rounded(subject: Subject, x: ua.Gaussian) -> list[dict[str, Any]]:
    """What rounding really does to each similarity, beside the error bar that was foretold."""
    width = minilm.steps(subject.inputs, minilm.BITS[LEVEL])
    answer = ua.propagate(subject.model, x)
    with torch.no_grad():
        plain = subject.model(subject.inputs)
        moved = subject.model((subject.inputs / width).round() * width)
    columns = (plain[0], moved[0], answer.mean[0], answer.std[0])
    keys = ("sentence", "plain", "rounded", "mean", "std")
    rows = zip(minilm.COMPARED, *(column.tolist() for column in columns), strict=True)
    return [dict(zip(keys, row, strict=True)) for row in rows]


def versions() -> dict[str, str]:
    """What the networks come from, and what ran them."""
    names = ["uaprop", "torch", "transformers"]
    names += [
        requirement.partition("==")[0].partition(">=")[0] for requirement in PACKAGES.values()
    ]
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write(name: str, record: dict[str, Any]) -> None:
    """Put one network's part into the results; another process may have written since."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    networks = stored.get("networks", {}) | {name: record}
    ordered = {key: networks[key] for key in pretrained() if key in networks}
    unfinished = RESULTS.with_suffix(f".{os.getpid()}")
    text = json.dumps({"command": "make bench-models", "networks": ordered}, indent=1)
    unfinished.write_text(text + "\n")
    unfinished.replace(RESULTS)


if __name__ == "__main__":
    main()
