"""Write the numbers of the last ``make bench-peers`` into docs/peers.md.

Run from the repository, after make bench-peers: .venv/bin/python docs/peers.py
"""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import Any

from tables import insert, markdown

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "peers.json"
WIDTH = 110
DRAW = math.sqrt(1 / math.pi)  # mean |relative error| of a Gaussian's std, times √draws

# After each table; {name[contestant kind]} is a number of it.
SAID = {
    "perceptron": """
**Variances alone are of no use here.** Hidden units share all their inputs. Whoever takes them to
be independent, this library's `diagonal` among them, gives error bars that are seven times too
small, whatever happens at the ReLU.

**torch-adf's `lowrank` is the fastest good answer**: {torch-adf, lowrank|std} off after
{torch-adf, lowrank|passes} forward passes, where `adjoint` needs {uaprop, adjoint 16|passes}
({uaprop, adjoint 16|std}) and `hybrid` {uaprop, hybrid 16|passes} ({uaprop, hybrid 16|std}). It
is given one factor for each of the 64 pixels and sends all of them through as one matrix, in
{torch-adf, lowrank|operations} operations. A single picture, with a 24th of the arithmetic, takes
`hybrid` {uaprop, hybrid 16|fixed} of the time and `adjoint` {uaprop, adjoint 16|fixed}: so much
of their cost is calls, those of the backward passes included, and not numbers. *A factor per
pixel* is `lowrank`'s idea in this library. It also keeps the part of ReLU's variance that is not
linear in the noise, and spreads the 64 factors over 128 sources to that end. It costs {uaprop, a
factor per pixel|passes} forward passes, and that is arithmetic: a single picture takes {uaprop, a
factor per pixel|fixed}.

**For variances alone, the report's formulas by hand are quicker than `diagonal`** on this network:
{the report's, by hand|passes} forward passes against {uaprop, diagonal|passes}. Calls again: a
single picture takes `diagonal` {uaprop, diagonal|fixed} of the time of 24. It makes {uaprop,
diagonal|operations} operations and looks for a rule at each layer; the formulas by hand
are {the report's, by hand|operations} operations, and cancel in the tails where these do not.
pytagi has no Python between layers at all.

**Monte Carlo** with 100 draws, {Monte Carlo, 100 draws|passes} forward passes, is {Monte Carlo,
100 draws|std} off. To be as good as `hybrid` it would need about {uaprop, hybrid 16|draws} draws.
""",
    "cnn": """
With convolutions the arithmetic counts, and the order changes. `lowrank` sends 64 pictures
through for each one, {torch-adf, lowrank|passes} forward passes, and leaves out the part of
ReLU's variance that is not linear: a bias of {torch-adf, lowrank|bias}. `hybrid` is {uaprop,
hybrid 16|std} off for {uaprop, hybrid 16|passes}. And 64 pixels are few: a factor for each of the
150,528 numbers of a photograph of 224 × 224 pixels is as many passes, while the number of draws
or probes does not depend on the input's size. For a *full* covariance torch-adf would hold 24
matrices of 2048 × 2048, so it was not asked.

*A factor per pixel* costs {uaprop, a factor per pixel|passes} passes, much more than `lowrank`:
it has twice the columns, a convolution of twice as many pictures takes more than twice as long at
this size, and what is not linear is computed on top.

For variances alone `diagonal` takes {uaprop, diagonal|passes} forward passes, torch-adf
{torch-adf|passes}, fastbnns {fastbnns|passes}, and the report's formulas by hand {the report's,
by hand|passes}. Much of the difference is again what a pass costs before any arithmetic (the
column *one picture*); the rest is ReLU's moments, which stay right in the tails. pytagi's
convolution is its own, not torch's, and takes {pytagi|passes}. All are off by a factor of 14 or
more. `calibrated` spends {uaprop, calibrated|passes} and is {uaprop, calibrated|std} off.
""",
    "weights": """
**Here the independent variances are nearly right.** Every weight has noise of its own, which
makes units less alike: suq, fastbnns, pytagi and `diagonal` are all some {uaprop, diagonal|std}
off after about ten forward passes. pytagi is the quickest at {pytagi|passes}.

**`auto` is beaten**: {uaprop, auto|std} for {uaprop, auto|passes} forward passes, where
`diagonal` has {uaprop, diagonal|std} for {uaprop, diagonal|passes} and Monte Carlo with 100 draws
{Monte Carlo, 100 draws|std} for {Monte Carlo, 100 draws|passes}. All pictures share the weights,
so their 240 scores are one answer, and `auto` follows its 16 main directions instead of all.
`hybrid` and `adjoint` follow all, for {uaprop, hybrid 16|passes} forward passes, and are {uaprop,
hybrid 16|std} off, which is as near as the truth can tell. For error bars of a few per cent on
random weights, take `diagonal` or `"samples"`.

bayesian-torch draws once per forward pass, in a loop, and computes every weight's deviation anew
each time. Monte Carlo with batched products gives the same error for less: {Monte
Carlo, 100 draws|passes} forward passes with 100 draws, against {bayesian-torch, 100
draws|passes}.
""",
}

LAYERS = """
One layer at a time, with independent noise of deviation 0.5 on inputs between −1 and 1: the error of the
std, or a dash where the package cannot. Independence ends in the last three rows. `auto` has 16
draws, which is few for a layer whose outputs have nothing in common; `adjoint` knows the moments.
"""

Rows = dict[str, dict[str, float]]


def number(rows: Rows, asked: str) -> str:
    """A number as it is read: "contestant|kind"."""
    name, _, kind = " ".join(asked.split()).partition("|")
    row = rows.get(name)
    if row is None:
        return "(not measured)"
    match kind:
        case "passes":
            return _passes(row["passes"])
        case "fixed":
            return f"{100 * row['one_picture_seconds'] / row['seconds']:.0f}%"
        case "operations":
            return f"{row['operations']:,}"
        case "std":
            return _percent(row["std_error"])
        case "bias":
            return _percent(row["std_bias"], "+")
        case "draws":
            draws = (DRAW / row["std_error"]) ** 2
            return f"{float(f'{draws:.1g}'):,.0f}"
    raise KeyError(kind)


def _percent(value: float, sign: str = "") -> str:
    percent = 100 * value
    return f"{percent:{sign}.{0 if abs(percent) >= 9.95 else 1}f}%".replace("-", "−")


def _passes(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def said(text: str, rows: Rows) -> str:
    """A text with its numbers, in lines of the usual length."""
    parts = text.strip().split("{")
    filled = parts[0]
    for part in parts[1:]:
        asked, _, rest = part.partition("}")
        filled += number(rows, asked) + rest
    return "\n\n".join(textwrap.fill(paragraph, WIDTH) for paragraph in filled.split("\n\n"))


def table(problem: dict[str, Any]) -> str:
    """A problem's contestants, and after them those who could not take part."""
    header = ["contestant", "forward passes", "ms", "one picture", "operations"]
    header += ["std error", "std bias"]
    rows = [
        [
            name,
            _passes(row["passes"]),
            f"{1e3 * row['seconds']:.2f}",
            f"{1e3 * row['one_picture_seconds']:.2f}",
            f"{row['operations']:,}",
            _percent(row["std_error"]),
            _percent(row["std_bias"], "+"),
            f"{row['mean_error']:.3f} σ",
        ]
        for name, row in problem["rows"].items()
    ]
    rows += [
        [f"{name}: *{reason}*", *[""] * len(header)] for name, reason in problem["absent"].items()
    ]
    return markdown([*header, "mean error"], rows)


def layers(rows: dict[str, dict[str, Any]]) -> str:
    """Errors of single layers."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    body = [
        [layer, *(_percent(c) if isinstance(c := row.get(name), float) else "—" for name in names)]
        for layer, row in rows.items()
    ]
    return markdown(["layer", *names], body)


def main() -> None:
    """Write the page."""
    results = json.loads(RESULTS.read_text())
    parts = [f"Measured on: {results['machine']}."]
    for name, problem in results["problems"].items():
        forward = f"A forward pass of 24 pictures takes {1e3 * problem['forward_seconds']:.2f} ms."
        parts += [f"## {problem['title']}", forward, table(problem)]
        parts.append(said(SAID[name], problem["rows"]))
    parts += ["## Layer by layer", textwrap.fill(LAYERS.strip(), WIDTH), layers(results["layers"])]
    insert("peers.md", "\n\n".join(parts))


if __name__ == "__main__":
    main()
