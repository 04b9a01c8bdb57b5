"""What propagation costs in plain passes, each beside the bound that it has to keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from memory import memory
from timed import CORES, STD, picture_classifier, pictures
from timing import race
from torch import Tensor, nn
from training import training

import uaprop as ua
from uaprop.demo import camera, digits_cnn, digits_images
from uaprop.numerics.precision import is_native

PLAIN, COMPILED = "plain", "plain, compiled"
PROBES = (8, 16)

Row = dict[str, Any]


def ratios(quick: bool) -> dict[str, Any]:
    """All rows with a bound, and what bfloat16 is worth on this machine.

    Args:
        quick: small pictures and three rounds, to see that everything runs.

    Returns:
        ``rows`` and ``bfloat16``.
    """
    source, model = picture_classifier()
    batch, few, size = (2, 1, 64) if quick else (8, 2, 224)
    budget = 0.0 if quick else 60.0
    ua.fused(True)
    with torch.no_grad():
        x = pictures(batch, size)
        rows = [*inference(model, f"ResNet-18 ({source})", x, budget)]
        rows += sketches(model, "ResNet-18", pictures(few, size), CORES, budget / 2)
        rows += sketches(digits_cnn(), "digits CNN", digits_images()[0], 1, budget / 6)
        bfloat16 = half_precision(model, x, budget / 6)
    rows += memory(batch, size, runs=1 if quick else 3)
    rows += training(budget / 2)
    for row in rows:
        row["met"] = judged(row)
    return {"rows": rows, "bfloat16": bfloat16}


def judged(row: Row) -> bool | None:
    """Whether a row keeps its bound; None if it has none, or this machine cannot tell."""
    bound = row["bound"]
    return None if bound is None or "untold" in row else row["ratio"] <= bound


def inference(model: nn.Module, name: str, mean: Tensor, budget: float) -> Iterator[Row]:
    """The diagonal method against a plain pass: eagerly, in bfloat16, as a module, compiled."""
    var = torch.full_like(mean, STD**2)
    x = ua.Gaussian(mean, var)
    module = ua.as_module(model, "diagonal").eval()
    plain_compiled = torch.compile(model)
    compiled = torch.compile(module, fullgraph=True)
    runs = {
        PLAIN: lambda: model(mean),
        "diagonal": lambda: ua.propagate(model, x, method="diagonal"),
        "diagonal, `var_dtype=bfloat16`": lambda: ua.propagate(
            model, x, method="diagonal", var_dtype=torch.bfloat16
        ),
        "diagonal, `ua.as_module`": lambda: module(mean, var),
        COMPILED: lambda: plain_compiled(mean),
        "diagonal, compiled": lambda: compiled(mean, var),
    }
    bounds = {
        "diagonal": 2.4,
        "diagonal, `var_dtype=bfloat16`": 2.0,
        "diagonal, `ua.as_module`": None,
        "diagonal, compiled": 2.4,
    }
    measured = race(runs, budget, CORES)
    for what, bound in bounds.items():
        against = COMPILED if "compiled" in what else PLAIN
        place = f"{name}, {' × '.join(str(n) for n in mean.shape)}"
        row = {"what": what, "network": place, "bound": bound} | measured.ratio(what, against)
        if "bfloat16" in what and not is_native(x.device):
            row["untold"] = "no bfloat16 instructions here: computed in float32, then rounded"
        yield row


def sketches(
    model: nn.Module, name: str, mean: Tensor, threads: int, budget: float
) -> Iterator[Row]:
    """A sketch of R probes is R + 1 passes through every linear layer."""
    x = ua.Gaussian(mean, std=STD) if name != "digits CNN" else camera(mean)
    runs = {PLAIN: lambda: model(mean)}
    for probes in PROBES:
        runs[f"sketch, {probes} probes"] = lambda probes=probes: ua.propagate(
            model, x, method="sketch", probes=probes
        )
    measured = race(runs, budget, threads)
    for probes in PROBES:
        what = f"sketch, {probes} probes"
        place = f"{name}, {' × '.join(str(n) for n in mean.shape)}"
        row = {"what": what, "network": place, "bound": round(1.3 * (probes + 1), 1)}
        yield row | measured.ratio(what, PLAIN)


def half_precision(model: nn.Module, mean: Tensor, budget: float) -> dict[str, Any]:
    """What rounding variances to bfloat16 does to deviations, and how fast a convolution is in it."""
    x = ua.Gaussian(mean, std=STD)
    exact = ua.propagate(model, x, method="diagonal").std
    rounded = ua.propagate(model, x, method="diagonal", var_dtype=torch.bfloat16).std
    off = (rounded / exact - 1).abs()
    image, weight = torch.randn(8, 64, 56, 56), torch.randn(64, 64, 3, 3)
    short, narrow = image.bfloat16(), weight.bfloat16()
    times = race(
        {
            "float32": lambda: F.conv2d(image, weight, padding=1),
            "bfloat16": lambda: F.conv2d(short, narrow, padding=1),
        },
        budget,
        CORES,
    )
    return {
        "native": is_native(x.device),
        "std_error": {"mean": float(off.mean()), "max": float(off.max())},
        "convolution": times.ratio("bfloat16", "float32"),
    }
