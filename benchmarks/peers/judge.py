"""How far off an answer is, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from problems import Moments
from torch.utils._python_dispatch import TorchDispatchMode

LEAST = 2e-3  # seconds that each is timed for at a time, so that short ones are repeated
LEAST_ROUNDS = 5


def errors(run: Callable[[int], Moments], truth: Moments, seeds: int) -> dict[str, float]:
    """Averages over outputs and seeds, with ``σ`` the true deviation and ``μ`` the true mean.

    Returns:
        ``std_error``, of ``|std/σ - 1|``; ``std_bias``, of ``std/σ - 1``; ``mean_error``, of
        ``|mean - μ|/σ``.

    Raises:
        ArithmeticError: if an answer is not finite.
    """
    mean, std = truth[0], truth[1].sqrt()
    total = torch.zeros(3, dtype=torch.float64)
    for seed in range(seeds):
        torch.manual_seed(seed)
        found, var = (part.detach().double() for part in run(seed))
        ratio = var.sqrt() / std - 1
        off = (found - mean).abs() / std
        total += torch.stack([ratio.abs().mean(), ratio.mean(), off.mean()])
    if not bool(total.isfinite().all()):
        raise ArithmeticError("some of its answer is infinite or NaN")
    return dict(zip(("std_error", "std_bias", "mean_error"), (total / seeds).tolist(), strict=True))


def best(runs: Mapping[Any, Callable[[int], Any]], budget: float) -> dict[Any, float]:
    """The fastest time of each in seconds; they take turns until the budget is spent."""
    times = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + budget
    rounds = 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        rounds += 1
        for name, run in runs.items():
            times[name] = min(times[name], _seconds(run))
    return times


def _seconds(run: Callable[[int], Any]) -> float:
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < LEAST:
        run(0)
        count += 1
    return elapsed / count


class _Counter(TorchDispatchMode):
    """Counts the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(run: Callable[[int], Any]) -> int:
    """How many operations of torch a run consists of."""
    with _Counter() as counter:
        run(0)
    return counter.count
