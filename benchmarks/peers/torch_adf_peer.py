"""torch-adf: assumed density filtering, layer by layer (MIT; github.com/jmaces/torch-adf)."""

from __future__ import annotations

from functools import partial

import torch
import torchadf.nn as adf
from problems import Carry, Moments
from torch import Tensor, nn

LABELS = {"diag": "torch-adf", "lowrank": "torch-adf, lowrank", "full": "torch-adf, full"}


def carriers(model: nn.Sequential, weight_noise: float) -> dict[str, Carry]:
    """The model made of the package's layers, with its three kinds of covariance.

    "lowrank" is given one factor per input element, which loses nothing; "full" is then the same
    numbers in a larger form.

    Raises:
        NotImplementedError: if there is no such layer, or the weights are random.
    """
    if weight_noise:
        raise NotImplementedError("its weights are numbers: random ones cannot be said")
    modes = list(LABELS) if _is_small(model) else ["diag", "lowrank"]
    return {LABELS[mode]: partial(CARRY[mode], _converted(model, mode)) for mode in modes}


def _is_small(model: nn.Sequential) -> bool:
    return not any(isinstance(layer, nn.Conv2d) for layer in model)


def _converted(model: nn.Module, mode: str) -> nn.Module:
    """The same network of the package's layers: it has no converter of its own."""
    match model:
        case nn.Sequential():
            new = adf.Sequential(*(_converted(layer, mode) for layer in model))
        case nn.Linear():
            new = adf.Linear(model.in_features, model.out_features, mode=mode)
        case nn.Conv2d():
            sizes = (model.in_channels, model.out_channels, model.kernel_size)
            new = adf.Conv2d(*sizes, model.stride, model.padding, mode=mode)
        case nn.AvgPool2d():
            new = adf.AvgPool2d(model.kernel_size, model.stride, model.padding, mode=mode)
        case nn.ReLU():
            new = adf.ReLU(mode=mode)
        case nn.Flatten():
            new = adf.Flatten(mode=mode)
        case _:
            raise NotImplementedError(f"it has no layer {type(model).__name__}")
    new.load_state_dict(model.state_dict())
    return new.eval().requires_grad_(False)


def _diagonal(model: nn.Module, mean: Tensor, var: Tensor) -> Moments:
    return model(mean, var)


def _lowrank(model: nn.Module, mean: Tensor, var: Tensor) -> Moments:
    factors = torch.diag_embed(var.sqrt().flatten(1)).unflatten(1, mean.shape[1:])
    mean, factors = model(mean, factors)
    return mean, factors.square().sum(-1)


def _full(model: nn.Module, mean: Tensor, var: Tensor) -> Moments:
    mean, covariance = model(mean, torch.diag_embed(var))
    return mean, covariance.diagonal(dim1=-2, dim2=-1)


CARRY = {"diag": _diagonal, "lowrank": _lowrank, "full": _full}
