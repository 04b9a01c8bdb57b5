"""Random weights that make a network's output depend on its input.

As initialised, many networks are next to constant: heads and the last normalisation of every branch are zero,
layer scales are 1e-6, and weights of 0.02 leave attention uniform. A test on such a network tests nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["lively"]

_SCALES = (
    "gamma",
    "scale",
    "gain",
    "ls1",
    "ls2",
    "alpha",
    "eta",
)  # of a branch of a residual network


def lively(model: nn.Module, run: Callable[[nn.Module], object], seed: int) -> nn.Module:
    """Give the model weights and statistics of a trained network's size; in place, for evaluation.

    Args:
        model: with the weights of its constructor.
        run: calls the model on a few typical inputs. Batch normalisation takes their statistics, randomly
            changed: fully random ones would let a deep network's values explode or vanish.
        seed: of all random numbers.

    Returns:
        The model.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator)

    model.eval()
    weights = {id(module.weight) for module in model.modules() if _is_dense(module)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if id(parameter) in weights:
                _strengthen(parameter, normal)
            elif parameter.is_floating_point() and parameter.abs().max() < 1e-3:
                _enliven(name, parameter, normal)
            elif name.endswith("weight") and bool((parameter == 1).all()):  # of a normalisation
                parameter.mul_(1 + 0.2 * normal(parameter))
        _statistics(model, run, normal)
    return model


def _is_dense(module: nn.Module) -> bool:
    """Whether a module multiplies by its weight: a linear layer or a convolution of any package."""
    weight = getattr(module, "weight", None)
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    return isinstance(weight, Tensor) and (
        isinstance(module, kinds) or (weight.ndim == 2 and type(module).__name__ == "Conv1D")
    )


def _strengthen(weight: Tensor, normal: Callable[[Tensor], Tensor]) -> None:
    """Let a weight keep the size of what it multiplies, if it makes it much smaller."""
    fan_in = weight[0].numel()
    gain = float(weight.square().mean().sqrt()) * math.sqrt(fan_in)
    if gain < 1e-2:
        weight.copy_(normal(weight) / math.sqrt(fan_in))
    elif gain < 0.7:
        weight.div_(gain)


def _enliven(name: str, parameter: Tensor, normal: Callable[[Tensor], Tensor]) -> None:
    """Random numbers for what is zero or all but zero."""
    leaf = name.rsplit(".", 1)[-1].lower()
    is_norm = leaf == "weight" and parameter.ndim <= 1
    if is_norm or (any(s in leaf for s in _SCALES) and "bias" not in leaf):
        parameter.copy_(0.5 * (1 + 0.2 * normal(parameter)))
    else:
        parameter.copy_(0.1 * normal(parameter))


def _statistics(
    model: nn.Module, run: Callable[[nn.Module], object], normal: Callable[[Tensor], Tensor]
) -> None:
    """Running means and variances: those of typical inputs, randomly changed."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        run(model)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum
        mean, var = norm.running_mean, norm.running_var
        var.clamp_(min=0.1 * float(var.mean()))  # a channel that hardly varies is no signal
        mean.add_(0.1 * normal(mean) * var.sqrt())
        var.mul_(torch.exp(0.1 * normal(var)))
