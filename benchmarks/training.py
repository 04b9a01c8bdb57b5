"""A training step with the expected loss, beside a plain one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from architectures import CifarResNet
from timed import CORES, STD, pictures
from timing import race
from torch import Tensor, nn

import uaprop as ua
from uaprop.demo import camera, digits_images
from uaprop.demo.digits import architecture

BOUND = 2.6
RATE = 1e-3
CLASSES = 10


def training(budget: float) -> Iterator[dict[str, Any]]:
    """Steps of the digits CNN and of ResNet-20, whose batch normalisation is also tried frozen.

    Both losses are binary cross-entropies of the ten scores, one class against the others: the
    expected one is exact.
    """
    torch.manual_seed(0)
    digits = digits_images()[0].repeat(3, 1, 1, 1)[:64]
    images = pictures(32, 32)
    cases = (
        ("digits CNN, 64 × 1 × 8 × 8", architecture(), digits, camera(digits), True, 1, BOUND),
        ("ResNet-20, 32 × 3 × 32 × 32", CifarResNet(3), images, None, True, CORES, BOUND),
        ("the same, normalisation frozen", CifarResNet(3), images, None, False, CORES, None),
    )
    for name, model, mean, given, norms_train, threads, bound in cases:
        x = given if given is not None else ua.Gaussian(mean, std=STD)
        target = F.one_hot(torch.arange(len(mean)) % CLASSES, CLASSES).float()
        model.train(
            norms_train
        )  # there is no dropout: it is batch normalisation alone that differs
        runs = {
            "plain": _step(copy.deepcopy(model), mean, F.binary_cross_entropy_with_logits, target),
            "expected": _step(copy.deepcopy(model), x, ua.nn.UABCELoss(), target),
        }
        row = {"what": "training step, expected loss", "network": name, "bound": bound}
        yield row | race(runs, budget, threads).ratio("expected", "plain")


def _step(
    model: nn.Module, x: Any, loss: Callable[[Any, Tensor], Tensor], target: Tensor
) -> Callable[[], None]:
    """Forward, loss, backward and a step of SGD."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimiser.zero_grad()
        loss(model(x), target).backward()
        optimiser.step()

    return step
