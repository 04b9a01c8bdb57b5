"""What the measurements say: where Monte Carlo still wins, which aims are met, and the pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from contestants import DRAWS, SAMPLED
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from uaprop.plot.style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, grid, save

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NAMES = {
    "digits": "Digits CNN",
    "resnet20": "ResNet-20",
    "rnet": "MTCNN R-Net",
    "crepe": "CREPE tiny",
    "crepe_logits": "CREPE tiny, logits",
    "efficientnet": "EfficientNet-Lite0",
}
BY_HAND = ("loop", "folded")  # plain Monte Carlo as one would write it
QUANTITIES = {"std": "std_error", "mean": "mean_error"}
LEAST, MOST, STEPS = 3.0, 300.0, 41
BUDGETS = [LEAST * (MOST / LEAST) ** (k / (STEPS - 1)) for k in range(STEPS)]
TIE = 1.0  # Monte Carlo wins where our error is more than this many times its

# The aims at the three levels: for the std and mean of adjoint with 16 probes, for the std
# of hybrid with 16 draws and of calibrated.
AIMS: Mapping[str, Mapping[tuple[str, str], tuple[float, float, float]]] = {
    "digits": {
        ("adjoint 16", "std"): (0.01, 0.02, 0.04),
        ("adjoint 16", "mean"): (0.05, 0.05, 0.05),
        ("hybrid 16", "std"): (0.01, 0.02, 0.04),
        ("calibrated", "std"): (0.20, 0.20, 0.20),
    },
    "crepe": {
        ("adjoint 16", "std"): (0.015, 0.02, 0.06),
        ("adjoint 16", "mean"): (0.3, 0.3, 0.3),
        ("hybrid 16", "std"): (0.02, 0.03, 0.06),
        ("calibrated", "std"): (0.25, 0.25, 0.25),
    },
    "resnet20": {
        ("adjoint 16", "std"): (0.05, 0.10, 0.11),
        ("adjoint 16", "mean"): (0.4, 0.4, 0.4),
        ("hybrid 16", "std"): (0.05, 0.09, 0.12),
        ("calibrated", "std"): (0.25, 0.25, 0.25),
    },
}
AIMS_FOR = {"crepe_logits": "crepe"}  # comparable
COSTS = {"resnet20": ("adjoint 16", 40.0)}

Point = tuple[float, float]  # cost in forward passes, error


def summary(network: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What follows from a network's errors and costs."""
    return {"frontier": list(_frontiers(network)), "aims": list(_aims(network, name))}


# ---------------------------------------------------------------------------------------- frontier


def monte_carlo(
    network: Mapping[str, Any],
    level: Mapping[str, Any],
    view: str,
    quantity: str,
    ways: Sequence[str] = BY_HAND,
) -> list[Point]:
    """Plain Monte Carlo's errors, each at the cost of the fastest of several ways to run it."""
    points = []
    for draws in DRAWS:
        cost, found = fastest(network, draws, ways), level["errors"].get(f"samples {draws}", {})
        if cost is not None and view in found:
            points.append((cost, found[view][QUANTITIES[quantity]]))
    return points


def fastest(network: Mapping[str, Any], draws: int, ways: Sequence[str] = BY_HAND) -> float | None:
    """Plain Monte Carlo's cost, by the fastest of several ways."""
    labels = [f"{way} {draws}" for way in ways]
    costs = [network["costs"][key]["passes"] for key in labels if key in network["costs"]]
    return min(costs, default=None)


def at(points: Sequence[Point], budget: float, least: float) -> float | None:
    """The error of draws at a cost: a power law between points, 1/√cost beyond them."""
    if not points or budget < least:
        return None
    if budget <= points[0][0]:
        return points[0][1] * math.sqrt(points[0][0] / budget)
    for (c0, e0), (c1, e1) in itertools.pairwise(points):
        if c0 < c1 and budget <= c1:
            share = math.log(budget / c0) / math.log(c1 / c0)
            return e0 * (e1 / e0) ** share
    return points[-1][1] * math.sqrt(points[-1][0] / budget)


def ours(
    network: Mapping[str, Any], level: Mapping[str, Any], view: str, quantity: str
) -> dict[str, Point]:
    """Cost and error of every method."""
    return {
        label: (network["costs"][label]["passes"], found[view][QUANTITIES[quantity]])
        for label, found in level["errors"].items()
        if view in found and label in network["costs"]
    }


def _frontiers(network: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for level in network["levels"]:
        for view in level["noise"]:
            for quantity in QUANTITIES:
                line = monte_carlo(network, level, view, quantity)
                points = ours(network, level, view, quantity)
                if not line or not points:
                    continue
                steps = _steps(line, points, quantity)
                # the same against our own plain draws
                any_way = monte_carlo(network, level, view, quantity, ("samples", *BY_HAND))
                others = {k: v for k, v in points.items() if k.split()[0] != "samples"}
                stricter = _steps(any_way, others, quantity)
                yield {
                    "label": level["label"],
                    "view": view,
                    "quantity": quantity,
                    "steps": steps,
                    "monte_carlo_wins": _ranges(steps),
                    "samples_win": [s["budget"] for s in stricter if s["monte_carlo_wins"]],
                    "worst": max((s["ratio"] for s in steps if s["ratio"]), default=None),
                    "best": min((s["ratio"] for s in steps if s["ratio"]), default=None),
                }


def _steps(
    line: Sequence[Point], points: Mapping[str, Point], quantity: str
) -> list[dict[str, Any]]:
    # Two draws give a deviation, one a mean.
    least = line[0][0] if quantity == "std" else line[0][0] / 2
    return [_step(budget, line, points, least) for budget in BUDGETS]


def _step(
    budget: float, line: Sequence[Point], points: Mapping[str, Point], least: float
) -> dict[str, Any]:
    theirs = at(line, budget, least)
    fitting = {label: error for label, (cost, error) in points.items() if cost <= budget}
    # Any number of draws can be had, with an option as without.
    for method in SAMPLED:
        sizes = sorted(point for label, point in points.items() if label.split()[0] == method)
        error = at(sizes, budget, sizes[0][0]) if sizes else None
        if error is not None:
            fitting = {k: v for k, v in fitting.items() if k.split()[0] != method}
            fitting[method] = error
    label = min(fitting, key=lambda key: fitting[key]) if fitting else None
    error = fitting[label] if label else None
    return {
        "budget": budget,
        "monte_carlo": theirs,
        "error": error,
        "method": label,
        "ratio": error / theirs if error is not None and theirs else None,
        "monte_carlo_wins": theirs is not None and (error is None or error > TIE * theirs),
    }


def _ranges(steps: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Runs of budgets at which Monte Carlo wins."""
    found: list[tuple[float, float]] = []
    going = False
    for step in steps:
        if step["monte_carlo_wins"]:
            start = found.pop()[0] if going else step["budget"]
            found.append((start, step["budget"]))
        going = step["monte_carlo_wins"]
    return found


def _aims(network: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    for (label, quantity), targets in AIMS.get(AIMS_FOR.get(name, name), {}).items():
        for level, target in zip(network["levels"], targets, strict=False):
            for view, found in level["errors"].get(label, {}).items():
                value = found[QUANTITIES[quantity]]
                yield {
                    "label": level["label"],
                    "view": view,
                    "method": label,
                    "quantity": quantity,
                    "target": target,
                    "measured": value,
                    "met": value <= target,
                }
    label, target = COSTS.get(name, ("", 0.0))
    if label in network["costs"]:
        value = network["costs"][label]["passes"]
        yield {
            "label": "",
            "view": "all",
            "method": label,
            "quantity": "passes",
            "target": target,
            "measured": value,
            "met": value <= target,
        }


# ---------------------------------------------------------------------------------------- pictures

# Colour, marker, line. Single points are hollow.
LOOKS: Mapping[str, tuple[str, str, str]] = {
    "diagonal": (BLACK, "v", ""),
    "linear": (BLACK, "s", ""),
    "calibrated": (GREEN, "*", ""),
    "sketch": (ORANGE, "^", "-"),
    "adjoint": (BLUE, "o", "-"),
    "hybrid": (RED, "D", "-"),
    "directions": (RED, "P", "--"),
    "quarter": (RED, ".", "--"),
    "samples": (GREY, ".", "-"),
    "antithetic": (BLACK, ".", ":"),
    "moderated": (GREEN, ".", "-"),
}


def draw(name: str, network: Mapping[str, Any]) -> list[Path]:
    """Errors against cost, a column for each level; one picture for each view."""
    made: list[Path] = []
    for view in network["levels"][0]["noise"]:
        suffix = "" if view == "all" else f"-{view}"
        path = IMAGES / f"frontier-{name}{suffix}.png"
        made += save(partial(_fill, name=name, network=network, view=view), (13, 8), path)
    return made


def _fill(figure: Figure, name: str, network: Mapping[str, Any], view: str) -> None:
    levels = network["levels"]
    axes = grid(figure, 2, len(levels), sharex=True, sharey="row")
    for row, quantity in enumerate(QUANTITIES):
        shown: list[float] = []
        for column, level in enumerate(levels):
            panel = axes[row * len(levels) + column]
            _panel(panel, network, level, view, quantity)
            shown += _shown(network, level, view, quantity)
            if row == 0:
                panel.set_title(f"noise {level['label']}")
            else:
                panel.set_xlabel("time (1 = one plain forward pass)")
        axes[row * len(levels)].set_ylim(min(shown) / 1.6, max(shown) * 1.6)
    axes[0].set_ylabel("standard deviation: mean of |std/σ − 1|")
    axes[len(levels)].set_ylabel("mean: mean of |mean − μ|/σ")
    for panel in axes:
        panel.label_outer()
    handles, labels = axes[0].get_legend_handles_labels()
    columns = len(labels) if len(labels) <= 10 else -(-len(labels) // 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    which = "" if view == "all" else f", {view} outputs"
    figure.suptitle(f"{NAMES[name]}{which}: error against cost")


def _shown(
    network: Mapping[str, Any], level: Mapping[str, Any], view: str, quantity: str
) -> list[float]:
    """All errors in a panel, and the truth's own."""
    points = [
        *monte_carlo(network, level, view, quantity),
        *ours(network, level, view, quantity).values(),
    ]
    return [level["noise"][view][quantity], *(error for _, error in points if error > 0)]


def _panel(
    axes: Axes, network: Mapping[str, Any], level: Mapping[str, Any], view: str, quantity: str
) -> None:
    line = monte_carlo(network, level, view, quantity)
    if line:
        axes.plot(
            *zip(*line, strict=True),
            color=GREY,
            linewidth=4,
            alpha=0.7,
            label="Monte Carlo by hand",
        )
    points = ours(network, level, view, quantity)
    for method, (colour, marker, style) in LOOKS.items():
        chosen = [points[key] for key in points if key.split()[0] == method]
        if view != "all" and any(key.endswith(view) for key in points if key.startswith(method)):
            chosen = [points[k] for k in points if k.startswith(method) and k.endswith(view)]
        if chosen:
            look: dict[str, Any] = {
                "markersize": 12 if marker == "*" else 7,
                "linestyle": style or "none",
            }
            fill = colour if style or marker == "*" else "none"
            costs, errors = zip(*sorted(chosen), strict=True)
            axes.plot(
                costs, errors, marker=marker, color=colour, mfc=fill, label=method, zorder=3, **look
            )
    axes.set(xscale="log", yscale="log")
    bottom = level["noise"][view][quantity]
    label = "below the truth's own noise"
    axes.axhspan(bottom / 1e3, bottom, color=GREY, alpha=0.15, linewidth=0, label=label)
    axes.axvspan(LEAST, MOST, color=BLUE, alpha=0.04, linewidth=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    if quantity == "std":
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
