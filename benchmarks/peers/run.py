"""Other packages for the same question, and Monte Carlo: time and error on the same networks.

Run from the repository: make bench-peers, or
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/peers/run.py [--quick]

Peers are installed from PyPI, each into a folder of its own in benchmarks/.cache/peers; one that cannot be
is listed with the reason. All contestants of a table run in one process on one thread and take
turns, and the fastest of many rounds counts. Errors are against 20,000 draws, and averaged over ten seeds.
Numbers go to benchmarks/results/peers.json, and docs/peers.py puts them into docs/peers.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for benchmarks/networks.py

import ours
from abilities import COLUMNS, abilities
from installed import PACKAGES, Missing, load
from judge import best, errors, operations
from ours import Run
from problems import Problem, problems, truth

RESULTS = Path(__file__).resolve().parents[1] / "results" / "peers.json"
SAMPLES, SEEDS, BUDGET = 20_000, 10, 40.0
PLAIN = "plain forward pass"
SAME = 0.01  # relative; fastbnns' closed form is 0.3% off for units that are surely on

Peers = Mapping[str, ModuleType | Missing]


def entered(problem: Problem, peers: Peers) -> tuple[dict[str, Run], dict[str, str]]:
    """Everyone who takes part in a problem, and why the others do not."""
    makers: dict[str, Callable[[], dict[str, Run]]] = {
        "uaprop": lambda: ours.library(problem),
        "the report's, by hand": lambda: ours.report(problem),
    }
    makers |= {name: lambda peer=peer: _called(peer, problem) for name, peer in peers.items()}
    makers["Monte Carlo"] = lambda: ours.monte_carlo(problem)
    runs: dict[str, Run] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            found = make()
            for run in found.values():
                run(0)
            runs |= found
        except Exception as error:  # what a contestant cannot do is a line of the table
            if name in ("uaprop", "Monte Carlo"):
                raise
            absent[name] = str(error) if _expected(error) else f"{type(error).__name__}: {error}"
    return runs, absent


class NotThere(Exception):
    """A peer could not be installed or imported."""


def _expected(error: Exception) -> bool:
    return isinstance(error, NotImplementedError | NotThere)


def _called(peer: ModuleType | Missing, problem: Problem) -> dict[str, Run]:
    if isinstance(peer, Missing):
        raise NotThere(peer.reason)
    _check(peer, problem)
    found = peer.carriers(problem.model, problem.weight_noise)
    return {
        label: lambda _, carry=carry: carry(problem.mean, problem.var)
        for label, carry in found.items()
    }


def _check(peer: ModuleType, problem: Problem) -> None:
    """Make sure that the peer has been given the same network: next to no noise gives its output.

    Raises:
        ArithmeticError: if it does not.
    """
    plain = problem.model(problem.mean)
    var = None if problem.var is None else 1e-10 * problem.var
    for label, carry in peer.carriers(problem.model, 1e-5 * problem.weight_noise).items():
        off = float((carry(problem.mean, var)[0] - plain).abs().max() / plain.abs().max())
        if not off < SAME:
            raise ArithmeticError(f"{label} is {off:.1%} off without noise: another network")


def measure(
    problem: Problem, peers: Peers, samples: int, seeds: int, budget: float
) -> dict[str, Any]:
    """One problem's table."""
    runs, absent = entered(problem, peers)
    true = truth(problem, samples)
    plain = {PLAIN: lambda _: problem.model(problem.mean)}
    single = replace(
        problem, mean=problem.mean[:1], var=None if problem.var is None else problem.var[:1]
    )
    alone = {(name, 1): run for name, run in entered(single, peers)[0].items()}
    seconds = best(plain | runs | alone, budget)
    rows = {
        name: {
            "seconds": seconds[name],
            "passes": seconds[name] / seconds[PLAIN],
            "one_picture_seconds": seconds[name, 1],
            "operations": operations(run),
            **errors(run, true, seeds),
        }
        for name, run in runs.items()
    }
    return {
        "title": problem.title,
        "forward_seconds": seconds[PLAIN],
        "rows": rows,
        "absent": absent,
    }


def table(result: Mapping[str, Any]) -> Table:
    """A problem's table for the terminal."""
    shown = Table(title=result["title"], title_justify="left")
    shown.add_column("contestant")
    for head in (
        "passes",
        "ms",
        "one picture",
        "operations",
        "std error",
        "std bias",
        "mean error",
    ):
        shown.add_column(head, justify="right")
    for name, row in result["rows"].items():
        shown.add_row(
            name,
            f"{row['passes']:,.1f}",
            f"{1e3 * row['seconds']:.2f}",
            f"{1e3 * row['one_picture_seconds']:.2f}",
            f"{row['operations']:,}",
            f"{100 * row['std_error']:.1f}%",
            f"{100 * row['std_bias']:+.1f}%",
            f"{row['mean_error']:.3f} σ",
        )
    shown.caption = "\n".join(f"{name}: {reason}" for name, reason in result["absent"].items())
    return shown


def layer_table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """The layers' table for the terminal."""
    shown = Table(title="One layer: error of the std", title_justify="left")
    shown.add_column("layer")
    for name in COLUMNS:
        shown.add_column(name, justify="right")
    for layer, row in rows.items():
        cells = [row.get(name) for name in COLUMNS]
        shown.add_row(layer, *(f"{100 * c:.1f}%" if isinstance(c, float) else "no" for c in cells))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few draws, seeds and rounds; not kept"
    )
    quick = parser.parse_args().quick
    samples, seeds, budget = (2_000, 2, 1.0) if quick else (SAMPLES, SEEDS, BUDGET)
    torch.set_num_threads(1)
    console = Console(width=120)
    peers = {name: load(name) for name in PACKAGES}
    machine = f"{platform.machine()}, one thread, torch {torch.__version__}"
    results: dict[str, Any] = {
        "command": "make bench-peers",
        "machine": machine,
        "samples": samples,
        "packages": PACKAGES,
        "problems": {},
    }
    with torch.no_grad():
        for problem in problems():
            result = measure(problem, peers, samples, seeds, budget)
            results["problems"][problem.name] = result
            console.print(table(result))
        results["layers"] = abilities(peers, samples)
    console.print(layer_table(results["layers"]))
    if not quick:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        console.print(f"Numbers: benchmarks/results/{RESULTS.name}", highlight=False)


if __name__ == "__main__":
    main()
