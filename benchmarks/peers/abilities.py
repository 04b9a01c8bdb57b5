"""What each peer can carry noise through: one kind of layer at a time, against Monte Carlo."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from installed import Missing
from judge import errors
from ours import read
from problems import Carry, Moments, moments
from torch import Tensor, nn

import uaprop as ua

COLUMNS = (
    "uaprop, diagonal",
    "uaprop, adjoint",
    "uaprop, auto",
    "torch-adf",
    "torch-adf, lowrank",
    "fastbnns",
    "fastbnns, closed-form ReLU",
    "suq",
)
BATCH, STD = 16, 0.5
VECTOR, PICTURE, WORDS = (32,), (2, 4, 4), (4, 8)
CHUNK = 500


class Skip(nn.Module):
    """``x + body(x)``."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class Attention(nn.Module):
    """Every word attends to every other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


def layers() -> dict[str, tuple[nn.Sequential, tuple[int, ...]]]:
    """Networks of one layer, with random weights, and the shape of their input."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(32)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    made: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "linear": (nn.Linear(32, 16), VECTOR),
        "convolution": (nn.Conv2d(2, 2, 3, padding=1), PICTURE),
        "ReLU": (nn.ReLU(), VECTOR),
        "GELU": (nn.GELU(), VECTOR),
        "sigmoid": (nn.Sigmoid(), VECTOR),
        "average pooling": (nn.AvgPool2d(2), PICTURE),
        "max pooling": (nn.MaxPool2d(2), PICTURE),
        "batch normalisation": (norm, VECTOR),
        "layer normalisation": (nn.LayerNorm(32), VECTOR),
        "softmax": (nn.Softmax(1), VECTOR),
        "skip connection": (Skip(nn.Sequential(nn.Linear(32, 32), nn.ReLU())), VECTOR),
        "linear, ReLU, linear": (
            nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)),
            VECTOR,
        ),
        "attention": (Attention(8), WORDS),
    }
    return {
        name: (
            (layer if type(layer) is nn.Sequential else nn.Sequential(layer))
            .eval()
            .requires_grad_(False),
            shape,
        )
        for name, (layer, shape) in made.items()
    }


def abilities(peers: Mapping[str, ModuleType | Missing], samples: int) -> dict[str, dict[str, Any]]:
    """For each layer and contestant, the error of the standard deviation or what it said instead.

    Not asked are bayesian-torch, whose input has no noise, and pytagi, which ends the process where a shape
    is not as it expects.
    """
    table: dict[str, dict[str, Any]] = {}
    for name, (model, shape) in layers().items():
        torch.manual_seed(1)
        mean = 2 * torch.rand(BATCH, *shape) - 1  # within two deviations of ReLU's kink
        var = torch.full_like(mean, STD**2)
        truth = moments(_draw(model, mean) for _ in range(samples // CHUNK))
        row = table[name] = {}
        for method in ("diagonal", "adjoint", "auto"):
            row[f"uaprop, {method}"] = _tried(_library(model, method), mean, var, truth)
        for peer in (name for name in peers if name in COLUMNS):
            row |= _peer(peer, peers[peer], model, mean, var, truth)
    return table


def _draw(model: nn.Module, mean: Tensor) -> Tensor:
    x = mean + STD * torch.randn(CHUNK, *mean.shape)
    return model(x.flatten(0, 1)).unflatten(0, (CHUNK, -1))


def _library(model: nn.Module, method: str) -> Carry:
    return lambda mean, var: read(ua.propagate(model, ua.Gaussian(mean, var), method))


def _peer(
    peer: str,
    module: ModuleType | Missing,
    model: nn.Sequential,
    mean: Tensor,
    var: Tensor,
    truth: Moments,
) -> dict[str, Any]:
    if isinstance(module, Missing):
        return {peer: module.reason}
    try:
        found = module.carriers(model, 0.0)
    except Exception as error:  # what a peer cannot do is the result
        return {peer: f"{type(error).__name__}: {error}"}
    return {
        label: _tried(carry, mean, var, truth) for label, carry in found.items() if label in COLUMNS
    }


def _tried(carry: Carry, mean: Tensor, var: Tensor, truth: Moments) -> float | str:
    try:
        return errors(lambda _: carry(mean.clone(), var.clone()), truth, seeds=1)["std_error"]
    except Exception as error:  # likewise
        return f"{type(error).__name__}: {error}"
