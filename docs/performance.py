"""Write the numbers and pictures of the last ``make bench`` into docs/performance.md.

Run from the repository, after make bench: .venv/bin/python docs/performance.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from performance_pictures import draw_ratios, draw_scaling
from tables import insert, markdown

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
OVERHEAD, IMPORT = 15.0, 0.15  # µs for an operation, seconds to import: benchmarks/overhead.py
BUSY = 0.5  # load average, as in benchmarks/run.py
STEEPER = 0.2  # a slope that exceeds its prediction by more is set in bold

Record = dict[str, Any]


def machine(found: Record) -> str:
    """One sentence on what the numbers were measured with."""
    half = "with" if found["bfloat16"] else "without"
    return (
        f"Measured on: {found['processor']}, {found['cores']} cores, {found['vectors']}, {half} bfloat16 "
        f"instructions; torch {found['torch']}, Python {found['python']}."
    )


def caution(results: Record) -> str:
    """A warning if the machine was not idle when the run began, or nobody knows; else nothing."""
    load = results.get("load", {}).get("ratios")
    if load is not None and load <= BUSY:
        return ""
    known = "What else ran was not recorded" if load is None else f"Load before the run: {load:.1f}"
    return (
        f"**Provisional.** {known}. Two threads that wait for each other suffer most on a busy machine, "
        "and not all contestants alike: neither bounds that are kept nor those that are missed can be "
        "relied on. Measure again on an idle machine."
    )


def ratios(rows: list[Record]) -> str:
    """Every ratio beside its bound; those that are too large in bold."""
    header = ["what", "on", "threads", "cost", "plain", "ratio", "by round", "at most"]
    cells = []
    for row in rows:
        ratio = f"{row['ratio']:.2f}"
        bound = "" if row["bound"] is None else f"{row['bound']:g}"
        if row["met"] is False:
            ratio, bound = f"**{ratio}**", f"{bound}, **missed**"
        elif "untold" in row:
            bound += ", not judged"
        within = f"{row['round_ratio']:.2f}" if "round_ratio" in row else ""
        text = [row["what"], row["network"], str(row["threads"]), *_costs(row)]
        cells.append([*text, ratio, within, bound])
    return markdown(header, cells, left=2)


def _costs(row: Record) -> tuple[str, str]:
    if "bytes" in row:
        return f"{row['bytes'] / 1e6:.0f} MB", f"{row['plain_bytes'] / 1e6:.0f} MB"
    return _milliseconds(row["seconds"]["best"]), _milliseconds(row["plain_seconds"]["best"])


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{1e3 * seconds:.0f} ms"


def half_precision(found: Record, rows: list[Record]) -> str:
    """What bfloat16 does here, in words."""
    error, ratio = found["std_error"], found["convolution"]["ratio"]
    parts = [
        "Rounding variances to bfloat16 changes the deviations of ResNet-18's scores by "
        f"{100 * error['mean']:.2f}% on average and {100 * error['max']:.2f}% at most. A plain convolution "
        f"in bfloat16 takes {ratio:.2f} times as long as in float32 on this machine."
    ]
    parts += [f"{row['what']}: {row['untold']}." for row in rows if "untold" in row]
    return " ".join(parts)


def methods(result: Record) -> str:
    """Times in forward passes, and errors."""
    seconds, errors = result["seconds"], result["std_error"]
    rows = [
        [
            name,
            f"{1e3 * value:.2f}",
            f"{value / seconds['plain']:.1f}",
            f"{100 * errors[name]:.1f}%" if name in errors else "",
        ]
        for name, value in seconds.items()
    ]
    return markdown(["method", "ms", "forward passes", "error of the std"], rows)


def slopes(axes: Record) -> str:
    """Measured slopes, with those of the work in brackets."""
    names = list(next(iter(axes.values()))["slopes"])
    rows = [
        [axis, *(_slope(found["slopes"][name]) for name in names)] for axis, found in axes.items()
    ]
    return markdown(["along", *names], rows)


def _slope(found: Record) -> str:
    measured, work = (abs(v) if abs(v) < 0.005 else v for v in (found["seconds"], found["work"]))
    text = f"{measured:.2f} ({work:.2f})"
    return f"**{text}**" if measured > work + STEEPER else text


def overhead(found: Record) -> str:
    """Microseconds for one operation on one element."""
    rows = []
    for name, times in found["microseconds"].items():
        own = f"{times['overhead']:.1f}"
        rows.append(
            [
                f"`{name}`",
                f"{times['total']:.1f}",
                f"{times['torch']:.1f}",
                f"{times['dispatch']:.1f}" if times["dispatch"] else "",
                own if times["overhead"] <= OVERHEAD else f"**{own}**",
            ]
        )
    header = ["operation", "on a Gaussian", "torch's operations", "torch's dispatch"]
    header.append(f"overhead, at most {OVERHEAD:.0f}")
    missed = sum(times["overhead"] > OVERHEAD for times in found["microseconds"].values())
    verdict = f"{missed} of {len(rows)} exceed it." if missed else "None exceeds it."
    return f"{markdown(header, rows)}\n\n{verdict} {_importing(found['import_seconds'])}"


def _importing(found: Record) -> str:
    verdict = "kept" if found["uaprop"] <= IMPORT else "**missed**"
    collecting = found["of which garbage collection"]
    return (
        f"`import uaprop` takes {found['uaprop']:.2f} s after torch's {found['torch']:.1f} s, "
        f"{collecting:.2f} s of it in one garbage collection; the bound of {IMPORT} s is {verdict}."
    )


def activations(result: Record) -> str:
    """Nanoseconds per element, by function."""
    columns = list(dict.fromkeys(label for row in result.values() for label in row))
    rows = [
        [f"`{name}`", *(f"{row[label]:.1f}" if label in row else "" for label in columns)]
        for name, row in result.items()
    ]
    return markdown(["function", *columns], rows)


def main() -> None:
    """Draw the pictures and write every table into the page."""
    results = json.loads((RESULTS / "latest.json").read_text())
    rows = results["ratios"]["rows"]
    draw_ratios(rows)
    draw_scaling(results["scaling"])
    scaling = results["scaling"]
    usual = ", ".join(f"{axis} {value}" for axis, value in scaling["size"].items())
    parts = [
        machine(results["machine"]),
        caution(results),
        "### Ratios and their bounds",
        "![Ratios beside their bounds](images/ratios.png)",
        ratios(rows),
        half_precision(results["ratios"]["bfloat16"], rows),
        "### How cost grows",
        "![Cost against depth, width, resolution, batch, probes and outputs](images/scaling.png)",
        f"Slopes of time, and of work in brackets, over the {scaling['fitted']} largest sizes. What is not "
        f"varied: {usual}.",
        slopes(scaling["axes"]),
        "### Overhead for one element, µs",
        overhead(json.loads((RESULTS / "overhead.json").read_text())),
        "### Digits CNN, batch of 24",
        methods(results["digits"]),
        "### Moments of scalar functions, ns per element",
        activations(results["activations"]),
    ]
    insert("performance.md", "\n\n".join(part for part in parts if part))


if __name__ == "__main__":
    main()
