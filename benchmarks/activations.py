"""What the moments of scalar functions cost for one element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from timing import race
from torch import Tensor

import uaprop as ua
from uaprop.numerics import clipped, elementary, elu, gelu, hardswish, logistic, mish, rectified

ELEMENTS = 2**18
STDS = (0.3, 3.0)
FUSED = (
    "relu",
    "leaky_relu",
    "relu6",
    "gelu",
    "gelu (tanh)",
    "silu",
    "mish",
    "softplus",
    "sigmoid",
    "tanh",
)
FUNCTIONS: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[..., Any]]] = {
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


def activations(budget: float) -> dict[str, dict[str, float]]:
    """Nanoseconds per element on one thread, float32, means from N(0, 1), for each function."""
    mean = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    variances = {std: torch.full_like(mean, std**2) for std in STDS}

    def timed(moments: Callable[..., Any], std: float, fused: bool) -> Callable[[], Any]:
        def run() -> Any:
            with ua.fused(fused):
                return moments(mean, variances[std])

        return run

    result = {}
    for name, (function, moments) in FUNCTIONS.items():
        runs: dict[str, Callable[[], Any]] = {"plain": lambda function=function: function(mean)}
        for std in STDS:
            runs[f"std {std:g}"] = timed(moments, std, fused=False)
            if name in FUSED:
                runs[f"std {std:g}, fused"] = timed(moments, std, fused=True)
        with torch.no_grad():
            measured = race(runs, budget, threads=1)
        result[name] = {label: 1e9 * measured.best(label) / ELEMENTS for label in runs}
    return result
