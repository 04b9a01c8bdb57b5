"""Write the numbers of the last ``make bench-default`` into docs/default.md.

Run from the repository, after make bench-default: .venv/bin/python docs/default.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from tables import insert, markdown

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "default.json"
FLIPS = RESULTS.with_name("flips.json")
NAMES = {
    "diabetes": "Diabetes, 10-64-64-1, ReLU",
    "breast_cancer": "Breast cancer, 30-32-32-2, tanh",
    "wine": "Wine, 13-64-64-3, SiLU, softmax",
    "controller": "Controller, six layers, ReLU",
    "smooth_controller": "Controller, six layers, tanh",
    "digits": "Digits CNN",
    "rnet": "MTCNN R-Net",
    "onet": "MTCNN O-Net",
    "resnet20": "ResNet-20",
    "resnet44": "ResNet-44",
    "crepe": "CREPE tiny",
    "silero": "Silero VAD",
    "pesto": "PESTO, confidences and volumes",
    "pesto_scores": "PESTO, scores",
    "fcpe": "FCPE",
    "fcpe_no_grad": "FCPE with `no_grad` inside",
    "minilm": "MiniLM sentence vector",
    "denoiser": "U-Net denoiser",
    "superresolution": "Super-resolution",
    "opennsfw": "OpenNSFW",
    "imagenet": "EfficientNet-Lite0, 1000 classes",
}
AIM, WORST = 0.8, 1.05  # of the ratios: their median, and each
Z = (0.7, 1.3)
ATTRIBUTION = 0.3

Record = dict[str, Any]


def verdicts(networks: dict[str, Record]) -> str:
    """Medians and maxima of the ratios, and how many z-scores are as they should be."""
    cases = [
        values
        for record in networks.values()
        for level in record["levels"]
        for values in level["views"].values()
    ]
    rows = []
    for quantity in ("std", "mean"):
        ratios = [case[quantity]["ratio"] for case in cases]
        scores = [case[quantity]["z"] for case in cases]
        good = [z for z in scores if z is not None and Z[0] <= z <= Z[1]]
        rows.append(
            [
                quantity,
                f"{statistics.median(ratios):.2f}",
                f"{max(ratios):.2f}",
                f"{sum(ratio <= AIM for ratio in ratios)} of {len(ratios)}",
                f"{sum(ratio > WORST for ratio in ratios)} of {len(ratios)}",
                f"{len(good)} of {len(scores)}",
            ]
        )
    header = [
        "error of the",
        "median ratio",
        "largest ratio",
        f"at most {AIM}",
        f"above {WORST}",
        f"z between {Z[0]} and {Z[1]}",
    ]
    return f"{len(networks)} networks, {len(cases)} rows of the table below:\n\n" + markdown(
        header, rows
    )


def errors(networks: dict[str, Record]) -> str:
    """A row for each network, noise level and choice of outputs."""
    header = [
        *("network", "noise", "outputs", "chosen", "passes", "MC samples"),
        *("std", "MC", "ratio", "z", "mean", "MC", "ratio", "z"),
    ]
    rows = []
    for name, record in networks.items():
        for level in record["levels"]:
            for view, values in level["views"].items():
                outputs = f"{level['judged'][view]} of {level['all']}"
                rows.append(
                    [
                        NAMES[name] + ("" if view == "all" else f", {view} outputs"),
                        level["label"],
                        outputs,
                        level["method"],
                        f"{level['passes']:.0f}",
                        f"{level['samples']}",
                        *_cells(values["std"], percent=True),
                        *_cells(values["mean"], percent=False),
                    ]
                )
    return markdown(header, rows, left=2)


def _cells(values: Record, percent: bool) -> list[str]:
    form = "{:.1%}" if percent else "{:.3f}"
    ratio = f"{values['ratio']:.2f}"
    z = "–" if values["z"] is None else f"{values['z']:.2f}"
    good = values["z"] is not None and Z[0] <= values["z"] <= Z[1]
    return [
        form.format(values["error"]),
        form.format(values["plain"]),
        f"**{ratio}**" if values["ratio"] > WORST else ratio,
        z if good else f"**{z}**",
    ]


def attribution(networks: dict[str, Record]) -> str:
    """Predicted against measured falls of variance."""
    header = [
        "network",
        "predicted",
        "of all parts",
        "measured",
        "off by, median",
        "off by, at most",
    ]
    rows = []
    for name, record in networks.items():
        found = record.get("attribution")
        if not found:
            continue
        off = [abs(each["predicted"] / each["measured"] - 1) for each in found]
        middle, most = statistics.median(off), max(off)
        cells = [f"{off:.0%}" if off <= ATTRIBUTION else f"**{off:.0%}**" for off in (middle, most)]
        falls = [
            ", ".join(f"{each[which]:.2f}" for each in found)
            for which in ("predicted", "of_parts", "measured")
        ]
        rows.append([NAMES[name], *falls, *cells])
    return markdown(header, rows)


def tolerances(networks: dict[str, Record]) -> str:
    """Errors that were achieved, for errors that were asked for."""
    asked = next((r["tolerances"] for r in networks.values() if r.get("tolerances")), None)
    if asked is None:
        return ""
    header = ["network", *(f"std, {each['rtol']:g}" for each in asked)]
    header += [f"mean, {each['rtol']:g}" for each in asked]
    rows = [
        [
            NAMES[name],
            *(f"{each['std_rms']:.3f}" for each in record["tolerances"]),
            *(f"{each['mean_rms']:.3f}" for each in record["tolerances"]),
        ]
        for name, record in networks.items()
        if record.get("tolerances")
    ]
    return (
        "## A precision asked for\n\n"
        "The root mean square of std/σ − 1 and of (mean − μ)/σ, at the middle noise level, for `rtol=` as "
        "each column says.\n\n" + markdown(header, rows) + "\n\n"
    )


def flips() -> str:
    """How far flip probabilities are off, beside frequencies of a plain sample."""
    if not FLIPS.exists():
        return ""
    header = ["network", "noise", "MC samples", "predictions that change", "error", "MC", "z"]
    rows = [
        [
            NAMES[name],
            level["label"],
            f"{level['samples']}",
            f"{level['changed']:.1%}",
            f"{level['error']:.3f}",
            f"{level['plain']:.3f}",
            f"{level['z']:.2f}",
        ]
        for name, record in json.loads(FLIPS.read_text())["networks"].items()
        for level in record["levels"]
    ]
    return (
        "## Predictions that change\n\n"
        "The mean absolute error of `ua.flip_probability`, and of how often the prediction changes in a "
        "plain sample that takes as long, on a hundred images (`benchmarks/flips.py`).\n\n"
        f"{markdown(header, rows, left=2)}\n\n"
    )


def sources(networks: dict[str, Record]) -> str:
    """Where the networks come from."""
    rows = [[NAMES[name], record["source"]] for name, record in networks.items()]
    return markdown(["network", "networks and inputs"], rows, left=2)


def page(networks: dict[str, Record]) -> str:
    """All that lies between the markers."""
    return (
        f"## In short\n\n{verdicts(networks)}\n\n"
        f"## Errors in the same time\n\n{errors(networks)}\n\n"
        "## Attribution\n\n"
        "The tenth of the pixels that contribute most to an output's variance lose their noise. By how "
        "much does the variance fall, as `attribution` predicts it and as Monte Carlo measures it? One "
        "number for each item, for the output with the largest mean, at the middle noise level. *Predicted* "
        "is the pixels' part of the variance; *of all parts* that of what is attributed to pixels at all, "
        f"which leaves out what is not linear.\n\n{attribution(networks)}\n\n"
        f"{tolerances(networks)}"
        f"{flips()}"
        f"## Networks\n\n{sources(networks)}"
    )


if __name__ == "__main__":
    insert("default.md", page(json.loads(RESULTS.read_text())["networks"]))
