"""Small networks on tables: scikit-learn's own data sets, and a controller's table of costs.

They are trained when they are first needed: a second or two each. Noise is in units of each column's
standard deviation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from subject import Subject, subject
from torch import Tensor, nn
from weights import trained

ITEMS = 16
SOURCE = "trained on scikit-learn's data"
LEVELS = (0.05, 0.2, 0.5)

# A simple aircraft: an intruder flies straight on, and we turn at one of five rates or do not.
RATES = (0.0, -1.5, 1.5, -3.0, 3.0)  # degrees a second; and a turn costs something
HORIZON = 40  # seconds
CLOSE = 1000.0  # metres


def diabetes() -> Subject:
    """Progress of the disease from ten measurements: 10-64-64-1, ReLU."""
    data = load_diabetes()
    return _fitted("diabetes", data, (64, 64), nn.ReLU, "regression")


def breast_cancer() -> Subject:
    """Two scores from thirty measurements: 30-32-32-2, tanh."""
    return _fitted("breast_cancer", load_breast_cancer(), (32, 32), nn.Tanh, "scores")


def wine() -> Subject:
    """Probabilities of three growers from thirteen measurements: 13-64-64-3, SiLU and softmax."""
    return _fitted("wine", load_wine(), (64, 64), nn.SiLU, "probabilities")


def controller() -> Subject:
    """Costs of five turns of an aircraft, from five numbers on an intruder: six layers of ReLU.

    Of the shape of ACAS Xu's networks (Julian et al. 2016), with a table of costs of our own.
    """
    return _controller("controller", nn.ReLU)


def smooth_controller() -> Subject:
    """The same with six layers of tanh."""
    return _controller("smooth_controller", nn.Tanh)


def perceptron(widths: tuple[int, ...], activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Linear layers of so many features, and activations between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def _fitted(
    name: str, data: object, hidden: tuple[int, ...], activation: type[nn.Module], kind: str
) -> Subject:
    columns = torch.from_numpy(data.data).float()  # type: ignore[attr-defined]
    target = torch.from_numpy(data.target)  # type: ignore[attr-defined]
    columns = (columns - columns.mean(0)) / columns.std(0)
    order = torch.randperm(len(columns), generator=torch.Generator().manual_seed(0))
    measured, others = order[:ITEMS], order[ITEMS:]
    if kind == "regression":
        target = ((target - target.mean()) / target.std()).float()[:, None]
    outputs = 1 if kind == "regression" else int(target.max()) + 1
    widths = (columns.shape[1], *hidden, outputs)
    criterion = (
        F.mse_loss if kind == "regression" else partial(F.cross_entropy, label_smoothing=0.1)
    )

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        batch = others[torch.randint(len(others), (32,), generator=generator)]
        decay = sum(weight.square().sum() for weight in model.parameters())
        return criterion(model(columns[batch]), target[batch]) + 1e-4 * decay

    model = trained(name, lambda: perceptron(widths, activation), loss, steps=1500)
    if kind == "probabilities":
        model = nn.Sequential(*model, nn.Softmax(-1))
    return subject(
        name,
        model,
        columns[measured],
        columns[others[: 2 * ITEMS]],
        levels=LEVELS,
        source=SOURCE,
        of="a column's std",
    )


def _controller(name: str, activation: type[nn.Module]) -> Subject:
    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        x = _encounters(256, generator)
        return F.mse_loss(model(x), _costs(x))

    widths = (5, *(50,) * 6, len(RATES))
    model = trained(name, lambda: perceptron(widths, activation), loss, steps=3000)
    inputs = _encounters(3 * ITEMS, torch.Generator().manual_seed(2))
    return subject(
        name,
        model,
        inputs[:ITEMS],
        inputs[ITEMS:],
        levels=(0.02, 0.05, 0.15),
        source="trained on a table of costs like that of ACAS Xu",
        of="a column's std",
    )


def _encounters(count: int, generator: torch.Generator) -> Tensor:
    """Standardised distance, bearing and heading of the intruder, and both speeds: (count, 5)."""
    uniform = torch.rand(count, 5, generator=generator)
    return (uniform - 0.5) * math.sqrt(12)


def _costs(x: Tensor) -> Tensor:
    """Of each turn: how close the two come, and the turn's own cost; (count, 5), about in [-1, 1]."""
    u = x / math.sqrt(12) + 0.5
    distance, bearing = 500 + 3500 * u[:, 0], math.pi * (2 * u[:, 1] - 1)
    heading = math.pi * (2 * u[:, 2] - 1)
    own, other = 100 + 200 * u[:, 3], 100 + 200 * u[:, 4]
    time = torch.linspace(0.0, HORIZON, 81)
    x_other = (distance * bearing.cos())[:, None] + (other * heading.cos())[:, None] * time
    y_other = (distance * bearing.sin())[:, None] + (other * heading.sin())[:, None] * time
    costs = []
    for rate in RATES:
        turn = math.radians(rate) if rate else 1e-6
        x_own = own[:, None] * torch.sin(turn * time) / turn
        y_own = own[:, None] * (1 - torch.cos(turn * time)) / turn
        least = torch.hypot(x_other - x_own, y_other - y_own).amin(1)
        costs.append(2 * torch.exp(-least / CLOSE) - 1 + abs(rate) / 30)
    return torch.stack(costs, 1)
