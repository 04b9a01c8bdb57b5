"""The methods that are measured, how far off each is, and how long each takes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from truth import DEFAULT_FOLDED, FOLDED, Truth
from zoo import Subject

import uaprop as ua

DRAWS = (2, 4, 8, 16, 32, 64, 128, 256)
SIZES: Mapping[str, tuple[int, ...]] = {
    "sketch": (4, 16, 64),
    "adjoint": (4, 8, 16, 32, 64),
    "hybrid": (4, 8, 12, 16, 32, 64, 128),
    "directions": (4, 8, 16, 32, 64),
    "quarter": (4, 8, 12, 16, 24, 32),
    "antithetic": DRAWS[1:],
    "moderated": (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256),
    "samples": DRAWS,
}
SAMPLED = ("samples", "antithetic", "moderated")  # method="samples", and its options
RANKED = ("directions", "quarter")  # method="hybrid", with a rank
MEASURED = ("diagonal", "calibrated", "linear", *SIZES, "loop", "folded")  # what labels begin with
MANY_OUTPUTS = 64  # with more, hybrid is tried with main directions, and by rows only once
QUICK = (4, 16, 64)
# what a large network is measured with, moderated beside
LARGE = {"efficientnet": (4, 8, 12, 16, 32)}
PICKY = ("linear", "adjoint", "hybrid")  # these can be asked for some outputs only
CALIBRATION_DRAWS = 64

ACTIVE = 0.01  # activations of CREPE whose true mean is larger are active

Case = tuple[nn.Module, ua.Gaussian]


@dataclass(frozen=True)
class Entry:
    """A method with its number of probes or draws."""

    method: str
    size: int | None = None

    @property
    def label(self) -> str:
        parts = (self.method, self.size)
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def random(self) -> bool:
        return self.size is not None

    @property
    def rank(self) -> int:
        """Main directions: as many as draws and at most 16, or a quarter of them and at least two."""
        size = self.size or 1
        return min(16, size) if self.method == "directions" else max(2, size // 4)

    def seeds(self, usual: int) -> int:
        """How many answers to average errors over: more where they are noisy and cheap."""
        if not self.random:
            return 1
        if self.method in SAMPLED:
            return usual * min(4, max(1, 32 // (self.size or 1)))
        return usual

    def run(self, case: Case, seed: int, calibration: Any = None) -> ua.Gaussian:
        options: dict[str, Any] = {}
        if self.method in ("sketch", "adjoint"):
            options = {"probes": self.size, "seed": seed}
        elif self.method in ("hybrid", *RANKED, *SAMPLED):
            options = {"samples": self.size, "seed": seed}
        elif self.method == "calibrated":
            options = {"calibration": calibration}
        if self.method == "antithetic":
            options["antithetic"] = True
        if self.method == "moderated":
            options |= {"moderated": True, "centred": True}
        if self.method in RANKED:
            options["rank"] = self.rank
        name = "samples" if self.method in SAMPLED else self.method
        name = "hybrid" if name in RANKED else name
        with torch.no_grad():
            return ua.propagate(*case, method=name, **options)


def entries(subject: Subject, quick: bool = False) -> Iterator[Entry]:
    """All that is measured on a network, cheapest kind first."""
    kinds = [Entry("diagonal"), Entry("calibrated"), Entry("linear")]
    with torch.no_grad():
        many = subject.model(subject.inputs).shape[1] > MANY_OUTPUTS
    for method, sizes in SIZES.items():
        if method in RANKED and not many:
            continue
        if subject.name in LARGE and method in ("sketch", "antithetic"):
            continue
        chosen = (16,) if many and method in PICKY else sizes
        if method not in ("moderated", "samples"):
            chosen = tuple(size for size in chosen if size in LARGE.get(subject.name, sizes))
        kinds += [Entry(method, size) for size in chosen if not quick or size in QUICK]
    yield from kinds


def case(subject: Subject, level: int) -> Case:
    """The model and its noisy input."""
    return subject.model, ua.Gaussian(subject.inputs, std=subject.noises[level])


def calibration(subject: Subject, level: int) -> Any:
    """Factors fitted to inputs other than the measured ones; None where uaprop has no such thing."""
    if not hasattr(ua, "calibrate"):
        return None
    return ua.calibrate(
        subject.model, subject.others, std=subject.noises[level], samples=CALIBRATION_DRAWS
    )


def views(subject: Subject, truth: Truth) -> dict[str, Tensor]:
    """Which outputs errors are averaged over, as masks ``(batch, outputs)``.

    All that vary and, for CREPE's activations, those that are not next to nothing.
    """
    found = {"all": truth.std > 0}
    if subject.name == "crepe":
        found["active"] = (truth.mean > ACTIVE) & (truth.std > 0)
    return found


def noise(truth: Truth, mask: Tensor) -> dict[str, float]:
    """The errors that a perfect answer would show, because the truth is sampled too."""
    typical = math.sqrt(2 / math.pi)  # mean |error| of one that is normal with deviation 1
    std, mean = truth.std_error / truth.std, truth.mean_error / truth.std
    return {
        "std": typical * float(std[mask].mean()),
        "mean": typical * float(mean[mask].mean()),
    }


def errors(
    answers: Sequence[ua.Gaussian], truth: Truth, found: Mapping[str, Tensor]
) -> dict[str, dict[str, float]]:
    """Averages over outputs, inputs and answers, for every view.

    ``std_spread`` and ``mean_spread`` are the errors' deviations between answers.
    """
    result = {}
    for name, mask in found.items():
        scores = []
        for answer in answers:
            off = (answer.cov.var.double().sqrt() / truth.std - 1)[mask]
            mean = ((answer.loc.double() - truth.mean) / truth.std)[mask]
            scores.append((off.abs().mean(), off.mean(), mean.abs().mean()))
        table = torch.tensor(scores)
        spread = table.std(0) if len(scores) > 1 else torch.zeros(3)
        values = [*table.mean(0).tolist(), spread[0].item(), spread[2].item()]
        names = ("std_error", "std_bias", "mean_error", "std_spread", "mean_spread")
        result[name] = dict(zip(names, values, strict=True))
    return result


# -------------------------------------------------------------------------------------------- time


def by_hand(subject: Subject, level: int) -> dict[str, Callable[[], Any]]:
    """Monte Carlo as one would write it: a pass per draw, and many draws in one batch."""
    model, x = subject.model, subject.inputs
    std = torch.as_tensor(subject.noises[level], dtype=x.dtype)
    most = FOLDED.get(subject.name, DEFAULT_FOLDED)

    def moments(answers: Tensor) -> tuple[Tensor, Tensor]:
        return answers.mean(0), answers.std(0)

    @torch.no_grad()
    def loop(draws: int) -> tuple[Tensor, Tensor]:
        return moments(torch.stack([model(x + std * torch.randn_like(x)) for _ in range(draws)]))

    @torch.no_grad()
    def folded(draws: int) -> tuple[Tensor, Tensor]:
        answers = []
        for start in range(0, draws, most):
            noisy = x + std * torch.randn(min(most, draws - start), *x.shape)
            answers.append(model(noisy.flatten(0, 1)).unflatten(0, (-1, len(x))))
        return moments(torch.cat(answers))

    runs: dict[str, Callable[[], Any]] = {}
    for draws in DRAWS:
        runs[f"loop {draws}"] = partial(loop, draws)
        runs[f"folded {draws}"] = partial(folded, draws)
    return runs


class Clock:
    """Processor time in units of one plain forward pass, which takes turns with what is timed.

    With one thread, processor time is what a clock on the wall shows on an otherwise idle machine,
    without what other programs take. Whatever else slows the machine slows both alike.
    """

    SHORT = 0.05  # seconds of forward passes between two measurements
    QUICK = 0.01  # seconds; what takes less is run several times in a row, as the passes are
    LEAST, MOST = 3, 25  # measurements

    def __init__(self, forward: Callable[[], Any], budget: float) -> None:
        self.forward = forward
        self.budget = budget
        self.passes: list[float] = []
        forward()
        self.count = max(1, math.ceil(self.SHORT / self._seconds(forward)))

    def cost(self, run: Callable[[], Any]) -> dict[str, float]:
        """The median over several measurements of its time in passes, those before and after it."""
        ratios: list[float] = []
        seconds: list[float] = []
        once = self._seconds(run)
        count = math.ceil(self.QUICK / once)
        before = self._pass()
        while len(seconds) < self.LEAST or (
            len(seconds) < self.MOST and count * sum(seconds) < self.budget
        ):
            seconds.append(self._seconds(run, count))
            after = self._pass()
            ratios.append(2 * seconds[-1] / (before + after))
            before = after
        return {"passes": statistics.median(ratios), "seconds": statistics.median(seconds)}

    @property
    def seconds(self) -> float:
        """One forward pass."""
        return statistics.median(self.passes)

    def _pass(self) -> float:
        self.passes.append(self._seconds(self.forward, self.count))
        return self.passes[-1]

    @staticmethod
    def _seconds(run: Callable[[], Any], count: int = 1) -> float:
        start = time.process_time()
        for _ in range(count):
            run()
        return (time.process_time() - start) / count
