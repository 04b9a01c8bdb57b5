"""Models that are known to treat the elements of a batch one by one.

Of others a trial has to tell (:class:`~uaprop.methods.batched.Batched`), which takes a small network's time.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

__all__ = ["is_rowwise"]

_LAYERS = frozenset(
    {
        nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d,
        nn.AvgPool1d,
        nn.AvgPool2d,
        nn.Conv1d,
        nn.Conv2d,
        nn.ELU,
        nn.GELU,
        nn.Hardswish,
        nn.Identity,
        nn.LeakyReLU,
        nn.Linear,
        nn.MaxPool1d,
        nn.MaxPool2d,
        nn.Mish,
        nn.ReLU,
        nn.ReLU6,
        nn.SiLU,
        nn.Sigmoid,
        nn.Softplus,
        nn.Tanh,
    }
)
_NORMS = frozenset({nn.BatchNorm1d, nn.BatchNorm2d})
_DROPOUTS = frozenset({nn.Dropout, nn.Dropout1d, nn.Dropout2d})


def is_rowwise(model: Any) -> bool:
    """Whether a model is a chain of torch's own layers, each of which treats batch elements one by one."""
    kind = type(model)
    if not isinstance(model, nn.Module) or _is_changed(model):
        return False
    if kind is nn.Sequential:
        return all(map(is_rowwise, model._modules.values()))
    if isinstance(model, nn.Flatten):
        return kind is nn.Flatten and model.start_dim == 1
    if kind in _NORMS:  # by fixed statistics
        return not model.training and model.running_mean is not None
    return kind in _LAYERS or (kind in _DROPOUTS and not model.training)


def _is_changed(model: nn.Module) -> bool:
    """Whether calling it does something else than its class says."""
    return bool(
        "forward" in vars(model)
        or model._forward_hooks
        or model._forward_pre_hooks
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
    )
