"""Print the tables: ``python -m tests.databases [--most N] [--methods diagonal,full] [NAME …]``."""

from __future__ import annotations

import argparse
import collections
import time
import warnings
from collections.abc import Callable, Iterable

import torch

from .calls import MODULES, OPERATORS, module_calls, operator_calls
from .sweep import METHODS, Call, judge

OUTCOMES = ("right", "approximate", "refused", "wrong", "crash", "skipped")


def main() -> None:
    """Run the databases and print how often each method was right, refused, wrong or crashed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="operators and modules; all by default")
    parser.add_argument("--most", type=int, help="samples of each; all by default")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--shard", default="0/1", help="as in 0/2: every second name")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    methods = options.methods.split(",")
    shard, count = (int(part) for part in options.shard.split("/"))
    for title, names, calls in (
        ("operators", OPERATORS, operator_calls),
        ("modules", MODULES, module_calls),
    ):
        chosen = [name for name in names if not options.names or name in options.names]
        if chosen:
            table(title, chosen[shard::count], calls, methods, options.most)


def table(
    title: str,
    names: list[str],
    calls: Callable[[str, int | None], Iterable[Call]],
    methods: list[str],
    most: int | None,
) -> None:
    """Judge every call by every method, and print the counts and whatever is wrong."""
    start = time.perf_counter()
    counts = {method: collections.Counter[str]() for method in methods}
    for name in names:
        for call in calls(name, most):
            for method in methods:
                verdict = judge(call, method)
                counts[method][verdict.outcome] += 1
                if verdict.outcome in ("wrong", "crash"):
                    print(f"{call.name} {method}: {verdict.outcome}, {verdict.detail}", flush=True)
    print(f"\n{title}, {len(names)}, in {time.perf_counter() - start:.0f} s")
    print("method".ljust(12), *(outcome.rjust(12) for outcome in OUTCOMES))
    for method in methods:
        row = (f"{counts[method][outcome]:,}".rjust(12) for outcome in OUTCOMES)
        print(method.ljust(12), *row, flush=True)


if __name__ == "__main__":
    main()
