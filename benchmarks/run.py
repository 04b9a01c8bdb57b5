"""How long propagation takes, in plain passes: bounds, methods, activations, and how cost grows.

Run from the repository: make bench, or .venv/bin/python benchmarks/run.py [--quick] [PART …]

Contestants of one table take turns, so that whatever else the machine does slows all of them alike. A
ratio is that of the fastest runs; beside it stands the median of the ratios within each round. Numbers go to
benchmarks/results/latest.json, those of parts that are not run stay as they are, and docs/performance.py puts
them into docs/performance.md. About ten minutes on two idle cores, more where kernels have to be compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from activations import activations
from networks import report_pass
from rich.console import Console
from rich.table import Table
from scaling import scaling
from speed import ratios
from timing import race
from torch import Tensor

import uaprop as ua
from uaprop.demo import camera, digits_cnn, digits_images
from uaprop.numerics.precision import is_native

RESULTS = Path(__file__).parent / "results" / "latest.json"
BUSY = 0.5  # load average of the last minute, before anything is timed
REFERENCE = 20_000  # Monte Carlo draws that count as the truth


def digits(budget: float) -> dict[str, Any]:
    """The demonstration's classifier on one thread: time and error of every method."""
    model = digits_cnn()
    x = camera(digits_images()[0])
    mean, var = x.mean.as_subclass(Tensor), x.var.as_subclass(Tensor)

    def by(method: str, **options: int) -> Callable[[], ua.Gaussian]:
        return lambda: ua.propagate(model, x, method=method, **options)

    answers = {
        "diagonal": by("diagonal"),
        "report, by hand": lambda: ua.Gaussian(*report_pass(model, mean, var)),
        "linear": by("linear"),
        "sketch, 16": by("sketch", probes=16),
        "adjoint, 16": by("adjoint", probes=16),
        "hybrid, 16": by("hybrid", samples=16),
        "samples, 16": by("samples", samples=16, seed=1),
        "samples, 100": by("samples", samples=100, seed=1),
    }
    ua.fused(True)
    with torch.no_grad():
        measured = race({"plain": lambda: model(mean), **answers}, budget, threads=1)
        truth = by("samples", samples=REFERENCE)()
        errors = {
            name: float((answer().std / truth.std - 1).abs().mean())
            for name, answer in answers.items()
        }
    seconds = {name: measured.best(name) for name in ("plain", *answers)}
    return {"seconds": seconds, "std_error": errors}


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": is_native(torch.device("cpu")),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def ratio_table(result: Mapping[str, Any]) -> Table:
    table = Table(title="Ratio to the plain pass or step", title_justify="left")
    for column in ("what", "on"):
        table.add_column(column)
    for column in ("threads", "ratio", "by round", "at most", ""):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        verdict = {True: "", False: "MISSED", None: "not judged" if "untold" in row else ""}
        table.add_row(
            row["what"].replace("`", ""),
            row["network"],
            str(row["threads"]),
            f"{row['ratio']:.2f}",
            f"{row['round_ratio']:.2f}" if "round_ratio" in row else "",
            "" if row["bound"] is None else f"{row['bound']:g}",
            verdict[row["met"]],
        )
    return table


def digits_table(result: Mapping[str, Any]) -> Table:
    table = Table(title="Digits CNN, batch of 24", title_justify="left")
    table.add_column("method")
    for column in ("ms", "forward passes", f"std error ({REFERENCE:,} draws)"):
        table.add_column(column, justify="right")
    for name, value in result["seconds"].items():
        passes = value / result["seconds"]["plain"]
        error = result["std_error"].get(name)
        shown = "" if error is None else f"{100 * error:.1f}%"
        table.add_row(name, f"{1e3 * value:.2f}", f"{passes:.1f}", shown)
    return table


def activation_table(result: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(title="Moments, ns per element", title_justify="left")
    table.add_column("function")
    columns = list(dict.fromkeys(label for row in result.values() for label in row))
    for label in columns:
        table.add_column(label, justify="right")
    for name, row in result.items():
        cells = (f"{row[label]:.1f}" if label in row else "" for label in columns)
        table.add_row(name, *cells)
    return table


def scaling_table(result: Mapping[str, Any]) -> Table:
    table = Table(title="Slope of time (of work)", title_justify="left")
    table.add_column("along")
    for name in next(iter(result["axes"].values()))["slopes"]:
        table.add_column(name, justify="right")
    for axis, found in result["axes"].items():
        slopes = found["slopes"].values()
        table.add_row(axis, *(f"{one['seconds']:.2f} ({one['work']:.2f})" for one in slopes))
    return table


def main() -> None:
    parts: dict[str, tuple[Callable[[bool], Any], Callable[[Any], Table]]] = {
        "ratios": (ratios, ratio_table),
        "digits": (lambda quick: digits(0.0 if quick else 15.0), digits_table),
        "activations": (lambda quick: activations(0.0 if quick else 2.0), activation_table),
        "scaling": (lambda quick: scaling(0.0 if quick else 4.0), scaling_table),
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test; writes no numbers")
    parser.add_argument("part", nargs="*", help=f"of {', '.join(parts)}; default: all")
    options = parser.parse_args()
    if unknown := sorted(set(options.part) - set(parts)):
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(parts)}")
    warnings.filterwarnings("ignore", "this processor has no instructions for bfloat16")
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["machine"] = machine()
    console = Console(width=max(100, Console().width))
    show = partial(console.print, highlight=False)
    show(", ".join(f"{key}: {value}" for key, value in results["machine"].items()))
    if os.getloadavg()[0] > BUSY:
        show(
            f"Load {os.getloadavg()[0]:.1f}: something else is running. No ratio can be relied on."
        )
    for name, (measure, table) in parts.items():
        if name in (options.part or parts):
            load = os.getloadavg()[0]
            results[name] = measure(options.quick)
            results.setdefault("load", {})[name] = load
            show(table(results[name]))
            if not options.quick:
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if not options.quick:
        show(f"Numbers: benchmarks/results/{RESULTS.name}")


if __name__ == "__main__":
    main()
