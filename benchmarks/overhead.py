"""What uaprop costs beside torch: for one operation on one element, and when it is imported.

Run from the repository: .venv/bin/python benchmarks/overhead.py [--quick]

An operation on a Gaussian runs some operations of torch on mean and variance. They are recorded and run
again without the Gaussian; of a scalar function it is the formula for its moments, compiled (``ua.fused``).
Before that torch finds out whom to ask, by ``__torch_function__``. A class that does nothing but run the
recorded operations shows how long that takes. Both are torch's own time, and the rest is overhead. All take
turns, and the fastest of many rounds counts, in processor time.

Importing is measured in fresh processes, with torch imported already and bytecode kept; a good part of it
can be one garbage collection of torch's objects, which whoever imports next has to wait for. Numbers also go
to benchmarks/results/overhead.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.overrides import TorchFunctionMode

import uaprop as ua
from uaprop.numerics import logistic, rectified

RESULTS = Path(__file__).parent / "results" / "overhead.json"
CALLS = 20  # of one operation in a row
ALLOWED = 15.0  # µs for an operation
ALLOWED_IMPORT = 0.15  # seconds

IMPORT = """
import gc, time
start = time.process_time(); import torch; torch_time = time.process_time() - start
begun, collecting = 0.0, 0.0
def collect(phase, info):
    global begun, collecting
    if phase == "start":
        begun = time.process_time()
    else:
        collecting += time.process_time() - begun
gc.callbacks.append(collect)
start = time.process_time(); import uaprop; print(torch_time, time.process_time() - start, collecting)
"""


class Recorder(TorchFunctionMode):
    """Notes the operations on tensors that an operation on a Gaussian consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, ua.Gaussian) for kind in types):
            with self:
                return ua.Gaussian.__torch_function__(func, types, args, kwargs)
        result = func(*args, **kwargs)
        first = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(first, Tensor):  # not the questions for a shape or a dtype
            self.calls.append(lambda: func(*args, **kwargs))
        return result


class Bare:
    """Whom torch asks, and who does no more than run some operations."""

    calls: tuple[Callable[[], Any], ...] = ()
    loc = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for call in cls.calls:
            call()
        return Bare()


def gaussians() -> list[Any]:
    """Two rows and a picture, of one element each."""
    sizes = ((1, 1), (1, 1), (1, 1, 1, 1))
    return [ua.Gaussian(torch.full(size, 0.3), torch.full(size, 0.5)) for size in sizes]


def operations(row: Any, other: Any, picture: Any) -> dict[str, Callable[[], Any]]:
    """Typical operations; each is asked for its mean."""
    weight, bias, kernel = torch.rand(1, 1), torch.rand(1), torch.rand(1, 1, 1, 1)
    centre, spread = torch.zeros(1), torch.ones(1)
    return {
        "torch.add(x, 1.0)": lambda: torch.add(row, 1.0).loc,
        "x + constant": lambda: (row + weight).loc,
        "x + y": lambda: (row + other).loc,
        "x * 2.0": lambda: (row * 2.0).loc,
        "x * y": lambda: (row * other).loc,
        "F.linear": lambda: F.linear(row, weight, bias).loc,
        "torch.matmul": lambda: torch.matmul(row, weight).loc,
        "F.conv2d": lambda: F.conv2d(picture, kernel, bias).loc,
        "F.batch_norm": lambda: F.batch_norm(picture, centre, spread).loc,
        "F.avg_pool2d": lambda: F.avg_pool2d(picture, 1).loc,
        "F.relu": lambda: F.relu(row).loc,
        "torch.sigmoid": lambda: torch.sigmoid(row).loc,
        "x.view": lambda: row.view(1).loc,
        "x[0]": lambda: row[0].loc,
        "torch.cat": lambda: torch.cat([row, other]).loc,
        "torch.sum": lambda: torch.sum(row, 1).loc,
        "torch.mean": lambda: torch.mean(row, 1).loc,
        "F.dropout (eval)": lambda: F.dropout(row, 0.5, False).loc,
    }


def formulas() -> dict[str, Callable[[], Any]]:
    """What the operations on scalar functions compute, by hand."""
    mean, var = torch.full((1, 1), 0.3), torch.full((1, 1), 0.5)
    return {
        "F.relu": lambda: rectified.relu.marginal(mean, var),
        "torch.sigmoid": lambda: logistic.sigmoid(mean, var),
    }


OF_PYTHON = ("x + ", "x * ", "x.", "x[")  # operators and methods, which torch has no part in


def recorded(run: Callable[[], Any]) -> tuple[Callable[[], Any], ...]:
    """The same operations of torch, on the same tensors, without a Gaussian."""
    with Recorder() as recorder:
        run()
    return tuple(recorder.calls)


def in_turn(calls: tuple[Callable[[], Any], ...]) -> Callable[[], None]:
    def again() -> None:
        for call in calls:
            call()

    return again


def handed_over(run: Callable[[], Any], calls: tuple[Callable[[], Any], ...]) -> Callable[[], None]:
    def again() -> None:
        Bare.calls = calls
        run()

    return again


def seconds_per_call(run: Callable[[], Any]) -> float:
    start = time.thread_time()
    for _ in range(CALLS):
        run()
    return (time.thread_time() - start) / CALLS


def dispatch(rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds for an operation on a Gaussian, and for torch's parts of it."""
    by_hand = formulas()
    bare = operations(Bare(), Bare(), Bare())
    contestants: dict[str, list[Callable[[], Any]]] = {}
    for name, run in operations(*gaussians()).items():
        calls = (by_hand[name],) if name in by_hand else recorded(run)
        contestants[name] = [run, in_turn(calls)]
        if not name.startswith(OF_PYTHON):
            contestants[name].append(handed_over(bare[name], calls))
    best = {name: [float("inf")] * len(runs) for name, runs in contestants.items()}
    for i in range(rounds):
        for name, runs in contestants.items():
            for j in range(len(runs))[:: 1 if i % 2 else -1]:  # who is last finds a warm cache
                best[name][j] = min(best[name][j], 1e6 * seconds_per_call(runs[j]))
    found = {}
    for name, (total, own, *asked) in best.items():
        asking = asked[0] - own if asked else 0.0
        overhead = total - own - asking
        found[name] = {"total": total, "torch": own, "dispatch": asking, "overhead": overhead}
    return found


def construction(rounds: int) -> dict[str, float]:
    """Microseconds to make a Gaussian, its arguments checked."""
    mean, var = torch.full((1, 1), 0.3), torch.full((1, 1), 0.5)
    ways = {
        "ua.Gaussian(mean, var)": lambda: ua.Gaussian(mean, var),
        "ua.Gaussian(mean, std=std)": lambda: ua.Gaussian(mean, std=var),
        "ua.Gaussian(mean, 0.5)": lambda: ua.Gaussian(mean, 0.5),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, run in ways.items():
            best[name] = min(best[name], 1e6 * seconds_per_call(run))
    return best


def importing(rounds: int) -> dict[str, float]:
    """Seconds to import torch, then uaprop, and what of the latter is garbage collection."""
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        runs = []
        for _ in range(rounds + 1):  # the first writes the bytecode
            done = subprocess.run(
                [sys.executable, "-c", IMPORT],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            runs.append([float(number) for number in done.stdout.split()])
    own, added, collecting = min(runs[1:], key=lambda run: run[1])
    return {"torch": own, "uaprop": added, "of which garbage collection": collecting}


def main() -> None:
    parser = argparse.ArgumentParser(description="dispatch overhead and import time")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    ua.fused(True)
    with torch.no_grad():
        result: dict[str, Any] = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "microseconds": dispatch(5 if quick else 200),
            "construction": construction(5 if quick else 200),
            "import_seconds": importing(1 if quick else 5),
        }
    console = Console(width=100)
    table = Table(title="One element, µs", title_justify="left")
    table.add_column("operation")
    columns = ("on a Gaussian", "torch's operations", "torch's dispatch")
    for column in (*columns, f"overhead (allowed: {ALLOWED:.0f})"):
        table.add_column(column, justify="right")
    for name, times in result["microseconds"].items():
        table.add_row(name, *(f"{value:.1f}" for value in times.values()))
    for name, value in result["construction"].items():
        table.add_row(name, f"{value:.1f}", "", "", "")
    console.print(table)
    seconds = result["import_seconds"]
    console.print(
        f"import torch: {seconds['torch']:.2f} s; import uaprop after it: {seconds['uaprop']:.3f} s "
        f"(allowed: {ALLOWED_IMPORT} s), of which {seconds['of which garbage collection']:.3f} s are "
        "garbage collection"
    )
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
