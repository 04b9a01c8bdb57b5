"""A timer for contestants that take turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.benchmark import Measurement, TaskSpec
from torch.utils.benchmark.utils.timer import timer

LEAST_ROUNDS = 3
LEAST_SECONDS = 5e-3  # for one measurement: what is shorter runs several times in a row


@dataclass(frozen=True)
class Race:
    """What :func:`race` measured: a time for each contestant and round."""

    times: Mapping[str, Measurement]

    def best(self, name: str) -> float:
        """A contestant's fastest run, in seconds."""
        return float(min(self.times[name].times))

    def ratio(self, name: str, against: str) -> dict[str, Any]:
        """How much longer ``name`` takes than ``against``.

        Returns:
            ``ratio`` of the fastest runs; ``round_ratio``, the median over the rounds of the ratio within
            each; fastest and median ``seconds`` of both; how many ``rounds`` and ``threads``.
        """
        first, second = self.times[name], self.times[against]
        within = [a / b for a, b in zip(first.times, second.times, strict=True)]
        return {
            "ratio": self.best(name) / self.best(against),
            "round_ratio": statistics.median(within),
            "seconds": {"best": self.best(name), "median": first.median},
            "plain_seconds": {"best": self.best(against), "median": second.median},
            "rounds": len(within),
            "threads": first.task_spec.num_threads,
        }


def race(
    contestants: Mapping[str, Callable[[], Any]], budget: float, threads: int, rounds: int = 100
) -> Race:
    """Time contestants that take turns, so that whatever else the machine does slows all alike.

    Args:
        contestants: what to time, by name.
        budget: seconds to spend; there are three rounds at least.
        threads: how many of torch's.
        rounds: the most there will be.

    Returns:
        Their times.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        repeats = {name: _repeats(run) for name, run in contestants.items()}
        times: dict[str, list[float]] = {name: [] for name in contestants}
        end, done = timer() + budget, 0
        while done < LEAST_ROUNDS or (done < rounds and timer() < end):
            done += 1
            for name, run in contestants.items():
                times[name].append(_seconds(run, repeats[name]))
    finally:
        torch.set_num_threads(before)
    return Race(
        {
            name: Measurement(
                repeats[name], raw, TaskSpec(name, "", description=name, num_threads=threads)
            )
            for name, raw in times.items()
        }
    )


def _repeats(run: Callable[[], Any]) -> int:
    """How often to run in a row for a measurement that is long enough; warms up as well."""
    run()
    return max(1, round(LEAST_SECONDS / _seconds(run, 1)))


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    """Of ``repeats`` runs in a row."""
    start = timer()
    for _ in range(repeats):
        run()
    return timer() - start
