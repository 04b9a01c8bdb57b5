"""suq: streamlined prediction with a Gaussian posterior (MIT; github.com/AaltoML/SUQ)."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch
from problems import Carry, Moments
from torch import Tensor, nn

# As published, 0.1.0 lacks its folder utils, and cannot be imported. What is missing is a data set for
# fitting a scale, which nothing here calls; an empty stand-in lets the import through.
_MISSING = ("suq.utils", "suq.utils.utils")
for _name in _MISSING:
    sys.modules[_name] = ModuleType(_name)
sys.modules[_MISSING[-1]].torch_dataset = None  # type: ignore[attr-defined]
streamline_mlp = importlib.import_module("suq").streamline_mlp


def carriers(model: nn.Sequential, weight_noise: float) -> dict[str, Carry]:
    """The package's own conversion, its scores before the likelihood."""
    stds = [weight_noise * p.flatten().abs() for p in model.parameters()]
    posterior = torch.cat(stds).square() if stds else torch.empty(0)
    network = streamline_mlp(model, posterior, "diag", "classification")

    def carry(mean: Tensor, var: Tensor | None) -> Moments:
        with torch.enable_grad():  # it takes ReLU's derivative with autograd
            mean, var = network.forward_latent(mean, var)
        return mean.detach(), var.detach()

    return {"suq": carry}
