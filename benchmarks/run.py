"""How long the methods take, in plain forward passes, and what the activations' moments cost.

Run from the repository: make bench, or .venv/bin/python benchmarks/run.py [--threads N] [--quick]

Contestants of one table take turns, and the fastest of several rounds counts, so that whatever else
the machine does slows all of them alike. One thread by default: several that wait for each other
are at the mercy of every other process. Numbers also go to benchmarks/results/latest.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from networks import report_pass, resnet18
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import uaprop as ua
from uaprop.demo import camera, digits_cnn, digits_images
from uaprop.numerics import clipped, elementary, elu, gelu, hardswish, logistic, mish, rectified

RESULTS = Path(__file__).parent / "results" / "latest.json"
REFERENCE = 20_000  # Monte Carlo draws that count as the truth
ELEMENTS = 2**18
MIN_ROUNDS, MAX_ROUNDS = 3, 100

ACTIVATIONS: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[..., Any]]] = {
    "relu": (F.relu, rectified.relu),
    "leaky_relu": (F.leaky_relu, lambda m, v: rectified.leaky(m, v, 0.01)),
    "relu6": (F.relu6, lambda m, v: clipped.clamp(m, v, 0.0, 6.0)),
    "hardswish": (F.hardswish, hardswish.hardswish),
    "elu": (F.elu, lambda m, v: elu.elu(m, v, 1.0, 1.0)),
    "gelu": (F.gelu, gelu.gelu),
    "gelu (tanh)": (lambda x: F.gelu(x, approximate="tanh"), gelu.gelu_tanh),
    "silu": (F.silu, logistic.silu),
    "mish": (F.mish, mish.mish),
    "softplus": (F.softplus, logistic.softplus),
    "sigmoid": (torch.sigmoid, logistic.sigmoid),
    "tanh": (torch.tanh, logistic.tanh),
    "exp": (torch.exp, elementary.exp),
    "erf": (torch.erf, elementary.erf),
}


def best(contestants: Mapping[str, Callable[[], Any]], budget: float) -> dict[str, float]:
    """Each contestant's fastest time in seconds; they take turns until the budget is spent."""
    times = dict.fromkeys(contestants, float("inf"))
    for run in contestants.values():
        run()  # warm up
    end = time.perf_counter() + budget
    rounds = 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() < end):
        rounds += 1
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def std_error(answer: ua.Gaussian, truth: ua.Gaussian) -> float:
    """Mean |relative error| of the standard deviations."""
    return float((answer.std / truth.std - 1).abs().mean())


def digits(budget: float) -> dict[str, Any]:
    """The demonstration's classifier: time and error of every method."""
    model = digits_cnn()
    x = camera(digits_images()[0])
    mean, var = x.mean.as_subclass(Tensor), x.var.as_subclass(Tensor)

    def sampled(count: int, seed: int = 1) -> ua.Gaussian:
        return ua.propagate(model, x, method="samples", samples=count, seed=seed)

    times = best(
        {
            "plain forward pass": lambda: model(mean),
            "diagonal": lambda: model(x),
            "report, by hand": lambda: report_pass(model, mean, var),
            "samples, 10": lambda: sampled(10),
            "samples, 100": lambda: sampled(100),
        },
        budget,
    )
    truth = sampled(REFERENCE, seed=0)
    by_hand = ua.Gaussian(*report_pass(model, mean, var))
    errors = {
        "diagonal": std_error(model(x), truth),
        "report, by hand": std_error(by_hand, truth),
        "samples, 10": std_error(sampled(10), truth),
        "samples, 100": std_error(sampled(100), truth),
    }
    return {"seconds": times, "std_error": errors}


def residual(pool: nn.Module, by_hand: bool, budget: float) -> dict[str, Any]:
    """ResNet-18's layers on a batch of 4 pictures of 3 × 96 × 96."""
    torch.manual_seed(0)
    model = resnet18(pool)
    mean = torch.rand(4, 3, 96, 96)
    var = torch.full_like(mean, 0.01)
    x = ua.Gaussian(mean, var)
    contestants: dict[str, Callable[[], Any]] = {
        "plain forward pass": lambda: model(mean),
        "diagonal": lambda: model(x),
    }
    if by_hand:
        contestants["report, by hand"] = lambda: report_pass(model, mean, var)
    return {"seconds": best(contestants, budget)}


def activations(budget: float) -> dict[str, dict[str, float]]:
    """Nanoseconds per element, float32, means from N(0, 1)."""
    torch.manual_seed(0)
    mean = torch.randn(ELEMENTS)
    narrow, wide = torch.full_like(mean, 0.3**2), torch.full_like(mean, 3.0**2)
    result = {}
    for name, (function, moments) in ACTIVATIONS.items():
        times = best(
            {
                "plain": lambda function=function: function(mean),
                "std 0.3": lambda moments=moments: moments(mean, narrow),
                "std 3": lambda moments=moments: moments(mean, wide),
            },
            budget,
        )
        result[name] = {label: 1e9 * t / ELEMENTS for label, t in times.items()}
    return result


def method_table(title: str, result: Mapping[str, Any]) -> Table:
    seconds, errors = result["seconds"], result.get("std_error", {})
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("ms", justify="right")
    table.add_column("forward passes", justify="right")
    if errors:
        table.add_column("std error", justify="right")
    for name, value in seconds.items():
        row = [name, f"{1e3 * value:.2f}", f"{value / seconds['plain forward pass']:.1f}"]
        if errors:
            row.append(f"{100 * errors[name]:.1f}%" if name in errors else "")
        table.add_row(*row)
    return table


def activation_table(result: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(
        title="Moments (mean, gain, variance), ns per element, float32, means from N(0, 1)",
        title_justify="left",
    )
    table.add_column("function")
    for label in ("plain", "std 0.3", "std 3"):
        table.add_column(label, justify="right")
    for name, row in result.items():
        table.add_row(name, *(f"{value:.1f}" for value in row.values()))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three rounds of everything")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    scale = 0.0 if options.quick else 1.0
    console = Console()
    machine = f"{platform.machine()}, threads: {options.threads}, torch {torch.__version__}"
    console.print(f"Best of several rounds; {machine}", highlight=False)
    results: dict[str, Any] = {"machine": machine}
    with torch.no_grad():
        results["digits"] = digits(15 * scale)
        console.print(
            method_table(
                f"Digits CNN, batch of 24; error of the std against {REFERENCE:,} draws",
                results["digits"],
            )
        )
        for name, pool, by_hand in (
            ("average pooling", nn.AvgPool2d(2), True),
            ("max pooling", nn.MaxPool2d(3, 2, 1), False),
        ):
            result = results[f"resnet18, {name}"] = residual(pool, by_hand, 15 * scale)
            console.print(method_table(f"ResNet-18, {name}, batch of 4, 3 × 96 × 96", result))
        results["activations"] = activations(3 * scale)
        console.print(activation_table(results["activations"]))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"Numbers: benchmarks/results/{RESULTS.name}", highlight=False)


if __name__ == "__main__":
    main()
