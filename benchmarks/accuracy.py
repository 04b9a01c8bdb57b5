"""How far off the methods are on real networks, against what they cost: the frontier.

Run from the repository: make bench-accuracy, or
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/accuracy.py [NAME ...] [--timings-only] [--quick]

The truth is Monte Carlo with thousands of draws (benchmarks/truth.py, kept in benchmarks/.cache).
Every network's part of benchmarks/results/accuracy.json is replaced when it has been measured, so
networks can be run one at a time; so can methods. Errors do not depend on what else the machine
does. Times hardly do (see `contestants.Clock`), but are best taken when it is idle: --timings-only
takes them again and leaves the errors. The pictures in docs/images are drawn anew each time;
docs/frontier.py writes the page.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import frontier
import torch
from contestants import (
    MEASURED,
    Clock,
    Entry,
    by_hand,
    calibration,
    case,
    entries,
    errors,
    noise,
    views,
)
from records import read, write
from rich.console import Console
from rich.table import Table
from truth import truth
from zoo import Subject, subjects

import uaprop as ua

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
TRIAL = Path(__file__).parent / ".cache" / "accuracy-quick.json"
SEEDS = {"digits": 10, "crepe": 3, "crepe_logits": 3, "efficientnet": 3}
DEFAULT_SEEDS = 5
BUDGET = 2.0  # seconds to time each method for, at least three runs
TIMED = 1  # the noise level at which methods are timed

console = Console(highlight=False, width=120, soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="networks; all by default")
    parser.add_argument("--methods", nargs="+", help="only these, for example: calibrated hybrid")
    parser.add_argument("--timings-only", action="store_true", help="leave the errors as they are")
    parser.add_argument("--errors-only", action="store_true", help="leave the times as they are")
    parser.add_argument("--redraw", action="store_true", help="measure nothing, draw and summarise")
    parser.add_argument(
        "--quick", action="store_true", help="a trial: kept apart, without pictures"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(subjects()):
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(subjects())}")
    torch.set_num_threads(1)
    ua.fused(True)  # whoever runs a model often has the kernels
    path = TRIAL if options.quick else RESULTS
    if not hasattr(ua, "calibrate"):
        console.print("uaprop has no calibrate: the calibrated method is left out")
    for name in options.names or subjects():
        start = time.perf_counter()
        if not options.redraw:
            measure(subjects()[name](), path, options)
        record = read(path).get("networks", {}).get(name)
        if record is None:
            continue
        record |= frontier.summary(record, name)
        write(path, name, record, subjects())
        show(name, record)
        if not options.quick:
            frontier.draw(name, record)
        console.print(f"{name} took {time.perf_counter() - start:.0f} s\n")
    console.print(f"Numbers: {path}")


def measure(subject: Subject, path: Path, options: argparse.Namespace) -> None:
    """Errors and times of one network, written as they come."""
    chosen = [
        entry
        for entry in entries(subject, options.quick)
        if (options.methods is None or entry.method in options.methods)
        and (entry.method != "calibrated" or hasattr(ua, "calibrate"))
    ]
    partial_run = options.methods is not None  # what was measured before stays
    if not options.timings_only:
        usual = 2 if options.quick else SEEDS.get(subject.name, DEFAULT_SEEDS)
        for level in range(len(subject.labels)):
            found = measure_errors(subject, level, chosen, usual)
            record = stored(path, subject)
            for key in ("errors", "failures") if partial_run else ():
                old = record["levels"][level].get(key, {})
                measured = {entry.label for entry in chosen}
                found[key] = kept(old, measured) | found[key]
            record["levels"][level] |= found
            write(path, subject.name, record, subjects())
    if not options.errors_only:
        # Only what has errors: the rest failed.
        known = stored(path, subject)["levels"][TIMED]["errors"]
        timed = [entry for entry in chosen if entry.label in known]
        by_hand_too = options.methods is None or "samples" in options.methods
        found = measure_times(subject, timed, 0.0 if options.quick else BUDGET, by_hand_too)
        record = stored(path, subject)
        if partial_run:
            found["costs"] = kept(record["costs"], set()) | found["costs"]
        write(path, subject.name, record | found, subjects())


def kept(old: dict[str, Any], measured: set[str]) -> dict[str, Any]:
    """What was measured before and is not now, of methods that there still are."""
    return {k: v for k, v in old.items() if k not in measured and k.split()[0] in MEASURED}


def stored(path: Path, subject: Subject) -> dict[str, Any]:
    """What is known of a network now; another process may have measured since."""
    record = read(path).get("networks", {}).get(subject.name) or blank(subject)
    return record | {"source": subject.source, "inputs": list(subject.inputs.shape)}


def blank(subject: Subject) -> dict[str, Any]:
    levels = [{"label": label, "noise": {}, "errors": {}} for label in subject.labels]
    return {"costs": {}, "levels": levels}


def measure_errors(
    subject: Subject, level: int, chosen: Iterable[Entry], usual: int
) -> dict[str, Any]:
    reference = truth(subject, level)
    found = views(subject, reference)
    given = case(subject, level)
    result: dict[str, Any] = {}
    failures: dict[str, str] = {}
    start = time.perf_counter()
    for entry in chosen:
        try:
            fitted = calibration(subject, level) if entry.method == "calibrated" else None
            seeds = range(1, 1 + entry.seeds(usual))
            answers = [entry.run(given, seed, fitted) for seed in seeds]
        except Exception as error:  # a method that cannot do it is a result, too
            failures[entry.label] = f"{type(error).__name__}: {error}"
            console.print(f"{subject.name}, {entry.label}: {failures[entry.label]}")
            continue
        result[entry.label] = errors(answers, reference, found)
    seconds = time.perf_counter() - start
    console.print(f"{subject.name}, {subject.labels[level]}: errors in {seconds:.0f} s")
    return {
        "samples": reference.samples,
        "outputs": {name: int(mask.sum()) for name, mask in found.items()},
        "noise": {name: noise(reference, mask) for name, mask in found.items()},
        "errors": result,
        "failures": failures,
    }


def measure_times(
    subject: Subject, chosen: Iterable[Entry], budget: float, by_hand_too: bool
) -> dict[str, Any]:
    given = case(subject, TIMED)
    costs: dict[str, Any] = {}
    start = time.perf_counter()

    @torch.no_grad()
    def forward() -> None:
        subject.model(subject.inputs)

    clock = Clock(forward, budget)
    for entry in chosen:
        fitted = calibration(subject, TIMED) if entry.method == "calibrated" else None
        costs[entry.label] = clock.cost(partial(entry.run, given, 0, fitted))
    if by_hand_too:
        costs |= {label: clock.cost(run) for label, run in by_hand(subject, TIMED).items()}
    seconds = time.perf_counter() - start
    console.print(
        f"{subject.name}: times in {seconds:.0f} s, one pass {1e3 * clock.seconds:.1f} ms"
    )
    machine = f"{platform.machine()}, one thread, torch {torch.__version__}"
    return {"costs": costs, "forward_seconds": clock.seconds, "machine": machine}


def show(name: str, record: dict[str, Any]) -> None:
    """Print errors, costs, aims, and where Monte Carlo wins."""
    title = f"{name}: error of the std (bias), error of the mean; samples' cost (written by hand)"
    if len(record["levels"][0]["noise"]) > 1:
        title += f"\nlines of a cell: {', '.join(record['levels'][0]['noise'])} outputs"
    table = Table(title=title, title_justify="left")
    for title in ("method", "passes", *(level["label"] for level in record["levels"])):
        table.add_column(title, justify="left" if title == "method" else "right")
    for label in dict.fromkeys(key for level in record["levels"] for key in level["errors"]):
        cells = []
        for level in record["levels"]:
            found = level["errors"].get(label, {}).values()
            cells.append("\n".join(_cell(view) for view in found))
        table.add_row(label, _cost(record, label), *cells)
    console.print(table)
    for aim in record["aims"]:
        verdict = "met" if aim["met"] else "MISSED"
        place = ", ".join(part for part in (aim["label"], aim["view"]) if part)
        console.print(
            f"  {verdict:6}  {aim['method']} {aim['quantity']} ({place}): "
            f"{aim['measured']:.3g}, aim {aim['target']:g}"
        )
    for line in record["frontier"]:
        wins = ", ".join(f"{low:.0f} to {high:.0f}" for low, high in line["monte_carlo_wins"])
        console.print(
            f"  {line['label']}, {line['view']}, {line['quantity']}: our error is "
            f"{line['best'] or 0:.2f} to {line['worst'] or 0:.2f} of Monte Carlo's; "
            f"Monte Carlo wins at {wins or 'no budget'}"
        )


def _cost(record: dict[str, Any], label: str) -> str:
    if label not in record["costs"]:
        return ""
    method, _, size = label.partition(" ")
    hand = f" ({frontier.fastest(record, int(size)):.1f})" if method == "samples" else ""
    return f"{record['costs'][label]['passes']:.1f}{hand}"


def _cell(found: dict[str, float]) -> str:
    std, bias, mean = found["std_error"], found["std_bias"], found["mean_error"]
    return f"{100 * std:.1f}% ({100 * bias:+.1f}%), {mean:.3f}"


if __name__ == "__main__":
    main()
