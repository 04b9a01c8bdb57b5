"""pytagi: cuTAGI's moments in C++, for networks that it also trains (MIT; github.com/lhnguyen102/cuTAGI)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytagi.nn as tagi
import torch
from problems import Carry, Moments
from torch import Tensor, nn

RECTIFIERS = {"pytagi": tagi.ReLU, "pytagi, closed-form ReLU": tagi.MixtureReLU}
SIDE = 8  # of the pictures that a first convolution sees; it has to be told


def carriers(model: nn.Sequential, weight_noise: float) -> dict[str, Carry]:
    """The model made of the package's layers: ReLU by its derivative, or in closed form.

    Raises:
        NotImplementedError: if there is no such layer.
    """
    has_relu = any(isinstance(layer, nn.ReLU) for layer in model)
    labels = list(RECTIFIERS) if has_relu else ["pytagi"]
    return {
        label: partial(_carry, _converted(model, weight_noise, RECTIFIERS[label]))
        for label in labels
    }


def _converted(model: nn.Sequential, weight_noise: float, rectifier: Any) -> Any:
    """The same network of the package's layers, with the same weights and their variances."""
    layers = [_layer(layer, rectifier, first=not i) for i, layer in enumerate(model)]
    network = tagi.Sequential(*(layer for layer in layers if layer is not None))
    network.preinit_layer()  # or it would draw weights anew at the first pass
    network.set_threads(1)
    network.eval()
    with_weights = [layer for layer in model if isinstance(layer, nn.Linear | nn.Conv2d)]
    stored = {}
    # its keys end in the layer's place, and come in any order
    keys = sorted(network.state_dict(), key=lambda key: int(key.rpartition(".")[2]))
    for key, layer in zip(keys, with_weights, strict=True):
        parts = (layer.weight, layer.bias)
        pairs = [(p.flatten(), (weight_noise * p.flatten()).square()) for p in parts]
        stored[key] = tuple(part.tolist() for pair in pairs for part in pair)
    network.load_state_dict(stored)
    return network


def _layer(layer: nn.Module, rectifier: Any, first: bool) -> Any:
    match layer:
        case nn.Linear():
            return tagi.Linear(layer.in_features, layer.out_features)
        case nn.Conv2d():
            sizes = (layer.in_channels, layer.out_channels, layer.kernel_size[0])
            side = SIDE if first else 0
            padding = layer.padding[0]
            return tagi.Conv2d(*sizes, padding=padding, in_width=side, in_height=side)
        case nn.AvgPool2d():
            return tagi.AvgPool2d(layer.kernel_size, layer.stride)
        case nn.ReLU():
            return rectifier()
        case nn.Flatten():
            return None  # its tensors are flat
    raise NotImplementedError(f"it has no layer {type(layer).__name__}")


def _carry(network: Any, mean: Tensor, var: Tensor | None) -> Moments:
    noise = () if var is None else (var.flatten().numpy(),)
    found = network(mean.flatten().numpy(), *noise)
    mean, var = (torch.from_numpy(part).view(len(mean), -1) for part in found)
    return mean, var
