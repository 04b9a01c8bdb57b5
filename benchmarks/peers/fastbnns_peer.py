"""fastbnns: moments through Bayesian networks (BSD-3-Clause; github.com/lanl/FastBNNs)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from fastbnns.bnn.base import BNN
from fastbnns.bnn.inference import ReLUa
from fastbnns.bnn.types import MuVar
from problems import Carry, Moments
from torch import Tensor, nn


def carriers(model: nn.Sequential, weight_noise: float) -> dict[str, Carry]:
    """The package's own conversion: sigma points at ReLU, its default, or the closed form."""
    labels: dict[str, dict[str, Any]] = {
        "fastbnns": {},
        "fastbnns, closed-form ReLU": {"ReLU": {"moment_propagator": ReLUa()}},
    }
    return {
        label: partial(_carry, _converted(model, weight_noise, options))
        for label, options in labels.items()
    }


def _converted(model: nn.Sequential, weight_noise: float, options: dict[str, Any]) -> nn.Module:
    """The model with its weights as means, and deviations in the package's parametrisation."""
    kept = {"learn_var": bool(weight_noise), "resample_mean": False}
    network = BNN(nn=model, wrapper_kwargs_global=kept, wrapper_kwargs_type=options)
    if weight_noise:
        stored = network.state_dict()
        for key in [key for key in stored if key.endswith("_rho")]:
            std = weight_noise * stored[key.removesuffix("_rho") + "_mean"].abs()
            stored[key] = torch.log(torch.expm1(std))  # the inverse of softplus
        # assign: initial deviations share memory, and torch refuses to copy into such tensors
        network.load_state_dict(stored, assign=True)
    return network.eval().requires_grad_(False)


def _carry(network: nn.Module, mean: Tensor, var: Tensor | None) -> Moments:
    answer = network(MuVar(mean, var))
    return answer.mu, answer.var
