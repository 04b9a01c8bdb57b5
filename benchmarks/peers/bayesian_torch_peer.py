"""bayesian-torch: Monte Carlo over weights (BSD-3-Clause; github.com/IntelLabs/bayesian-torch)."""

from __future__ import annotations

import copy
from functools import partial

import torch
from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn
from problems import Carry, Moments
from torch import Tensor, nn

DRAWS = (10, 30, 100)


def carriers(model: nn.Sequential, weight_noise: float) -> dict[str, Carry]:
    """The package's own conversion, with deviations in proportion to the weights ("MOPED").

    Raises:
        NotImplementedError: if the weights are not random.
    """
    if not weight_noise:
        raise NotImplementedError("it has random weights only: its input is a tensor")
    network = copy.deepcopy(model)
    options = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -3.0,
        "type": "Reparameterization",
        "moped_enable": True,
        "moped_delta": weight_noise,
    }
    dnn_to_bnn(network, options)
    return {f"bayesian-torch, {n} draws": partial(_sample, network.eval(), n) for n in DRAWS}


def _sample(network: nn.Module, draws: int, mean: Tensor, var: Tensor | None) -> Moments:
    answers = torch.stack([network(mean) for _ in range(draws)])
    return answers.mean(0), answers.var(0)
