"""Write the numbers of the last ``make bench-accuracy`` into docs/frontier.md.

Run from the repository, after make bench-accuracy: .venv/bin/python docs/frontier.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tables import insert, markdown

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "accuracy.json"
NAMES = {
    "digits": "Digits CNN",
    "resnet20": "ResNet-20",
    "rnet": "MTCNN R-Net",
    "crepe": "CREPE tiny",
    "crepe_logits": "CREPE tiny, before the sigmoid",
    "efficientnet": "EfficientNet-Lite0",
}
AIMED = (
    ("adjoint 16", "std"),
    ("adjoint 16", "mean"),
    ("hybrid 16", "std"),
    ("calibrated", "std"),
)
BY_HAND = ("loop", "folded")

Record = dict[str, Any]


def value(quantity: str, number: float) -> str:
    """An error as it is read: deviations in percent, means in units of the true deviation."""
    if quantity != "std":
        return f"{number:.3f}" if number < 0.1 else f"{number:.2f}"
    percent = 100 * number
    return f"{percent:.{2 if percent < 1 else 1 if percent < 10 else 0}f}%"


def title(name: str, view: str, views: int) -> str:
    """A network's name, and which outputs where there is a choice."""
    return NAMES[name] if views == 1 else f"{NAMES[name]}, {view} outputs"


def aims(networks: dict[str, Record]) -> str:
    """The issue's aims and what was measured; those that were missed are in bold."""
    header = ["network", "noise", *(f"`{label}`: {quantity}" for label, quantity in AIMED)]
    rows = []
    for name, record in networks.items():
        cells = {(a["label"], a["view"], a["method"], a["quantity"]): a for a in record["aims"]}
        views = record["levels"][0]["noise"]
        for view in views:
            for level in record["levels"]:
                row = [title(name, view, len(views)), level["label"]]
                found = [cells.get((level["label"], view, *aimed)) for aimed in AIMED]
                if any(found):
                    rows.append([*row, *(_cell(aim) for aim in found)])
    return markdown(header, rows, left=2)


def _cell(aim: Record | None) -> str:
    if aim is None:
        return ""
    quantity = aim["quantity"]
    target = f"{100 * aim['target']:g}%" if quantity == "std" else f"{aim['target']:g}"
    text = f"{value(quantity, aim['measured'])} (≤ {target})"
    return text if aim["met"] else f"**{text}**"


def costs(networks: dict[str, Record]) -> str:
    """Aims for the time."""
    lines = []
    for name, record in networks.items():
        for aim in record["aims"]:
            if aim["quantity"] == "passes":
                verdict = "met" if aim["met"] else "**missed**"
                lines.append(
                    f"`{aim['method']}` on {NAMES[name]} takes {aim['measured']:.0f} forward passes; "
                    f"the aim of at most {aim['target']:.0f} is {verdict}."
                )
    return "\n".join(lines)


def wins(networks: dict[str, Record]) -> str:
    """Where Monte Carlo still wins, for every network and noise."""
    header = [
        "network",
        "noise",
        "of",
        "budgets at which Monte Carlo wins",
        "our error / Monte Carlo's",
    ]
    rows = []
    for name, record in networks.items():
        views = record["levels"][0]["noise"]
        for line in record["frontier"]:
            ranges = ", ".join(_range(*pair) for pair in line["monte_carlo_wins"]) or "none"
            ratios = f"{line['best']:.2f} to {line['worst']:.2f}" if line["best"] else ""
            place = title(name, line["view"], len(views))
            rows.append([place, line["label"], line["quantity"], ranges, ratios])
    return markdown(header, rows, left=4)


def tally(networks: dict[str, Record]) -> str:
    """How often Monte Carlo wins, in one sentence for each quantity."""
    sentences = []
    for quantity, words in (("std", "standard deviation"), ("mean", "mean")):
        steps = [
            step
            for record in networks.values()
            for line in record["frontier"]
            if line["quantity"] == quantity
            for step in line["steps"]
        ]
        lost = [step["budget"] for step in steps if step["monte_carlo_wins"]]
        text = f"In the {words}, Monte Carlo has the smaller error at {len(lost)} of {len(steps)} budgets"
        beyond = sum(budget > 15 for budget in lost)
        sentences.append(f"{text}, {beyond} of them above 15 forward passes.")
    stricter = {
        quantity: sum(
            len(line["samples_win"])
            for record in networks.values()
            for line in record["frontier"]
            if line["quantity"] == quantity
        )
        for quantity in ("std", "mean")
    }
    sentences.append(
        "Against plain draws as fast as `samples` makes them, all other methods are not "
        f"better at {stricter['std']} in the standard deviation and {stricter['mean']} in the mean."
    )
    return " ".join(sentences)


def _range(low: float, high: float) -> str:
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def methods(record: Record, view: str) -> str:
    """Every method's cost and errors."""
    header = ["method", "forward passes"]
    for level in record["levels"]:
        header += [f"std, {level['label']}", "mean"]
    rows = []
    for label, cost in record["costs"].items():
        found = [level["errors"].get(label, {}).get(view) for level in record["levels"]]
        if not any(found):
            continue
        row = [f"`{label}`", _passes(record, label, cost["passes"])]
        for one in found:
            if one is None:
                row += ["", ""]
            else:
                std, bias = value("std", one["std_error"]), 100 * one["std_bias"]
                row += [f"{std} ({bias:+.1f}%)", value("mean", one["mean_error"])]
        rows.append(row)
    return markdown(header, rows)


def _passes(record: Record, label: str, passes: float) -> str:
    method, _, size = label.partition(" ")
    if method != "samples":
        return f"{passes:.1f}"
    ways = [record["costs"][f"{way} {size}"]["passes"] for way in BY_HAND]
    return f"{passes:.1f}, by hand {min(ways):.1f}"


def network(name: str, record: Record) -> str:
    """One network's pictures and tables."""
    batch, shape = record["inputs"][0], " × ".join(str(n) for n in record["inputs"][1:])
    level = record["levels"][0]
    outputs, draws = level["outputs"]["all"] // batch, level["samples"]
    parts = [
        f"### {NAMES[name]}",
        f"{batch} inputs of {shape}, {outputs} outputs each; the truth has {draws:,} draws. One forward "
        f"pass of the batch takes {1e3 * record['forward_seconds']:.3g} ms. From: {record['source']}.",
    ]
    for view in level["noise"]:
        suffix = "" if view == "all" else f"-{view}"
        known = "; ".join(
            f"{one['label']}: {value('std', one['noise'][view]['std'])} and "
            f"{value('mean', one['noise'][view]['mean'])}"
            for one in record["levels"]
        )
        named = title(name, view, len(level["noise"]))
        parts += [
            f"![{named}: error against cost](images/frontier-{name}{suffix}.png)",
            f"*{named}. Errors that the truth's own noise would show (std and mean): {known}.*",
            methods(record, view),
        ]
    failures = {k: v for one in record["levels"] for k, v in one.get("failures", {}).items()}
    if failures:
        listed = "\n".join(f"- `{label}`: {reason}" for label, reason in failures.items())
        parts.append(f"Not able to:\n\n{listed}")
    return "\n\n".join(parts)


def main() -> None:
    """Write every table into the page."""
    networks = json.loads(RESULTS.read_text())["networks"]
    complete = {name: record for name, record in networks.items() if record.get("frontier")}
    machines = {record["machine"] for record in complete.values()}
    parts = [
        f"Measured on: {'; '.join(sorted(machines))}.",
        "### What was aimed at",
        aims(complete),
        costs(complete),
        "### Where Monte Carlo still wins",
        tally(complete),
        wins(complete),
        *(network(name, record) for name, record in complete.items()),
    ]
    insert("frontier.md", "\n\n".join(part for part in parts if part))


if __name__ == "__main__":
    main()
