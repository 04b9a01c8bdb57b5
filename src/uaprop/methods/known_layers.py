"""Models that are known to treat the items of a batch one by one: chains of torch's own layers."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

__all__ = ["output_dimensions"]

_LAYERS = frozenset(
    {
        nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d,
        nn.AvgPool1d,
        nn.AvgPool2d,
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
# With one dimension less, the first one is channels and not a batch.
_DIMENSIONS: dict[type[nn.Module], tuple[int, ...]] = {
    nn.Conv1d: (3,),
    nn.Conv2d: (4,),
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
}
_DROPOUTS = frozenset({nn.Dropout, nn.Dropout1d, nn.Dropout2d})


def output_dimensions(model: Any, ndim: int) -> int | None:
    """The dimensions of the output of a chain of known layers, None of any other model."""
    kind = type(model)
    if not isinstance(model, nn.Module) or _is_changed(model):
        return None
    if kind is nn.Sequential:
        known: int | None = ndim
        for layer in model._modules.values():
            known = None if known is None else output_dimensions(layer, known)
        return known
    if kind is nn.Flatten:
        return 2 if model.start_dim == 1 and model.end_dim == -1 and ndim > 1 else None
    if kind in _DIMENSIONS:
        fixed = kind in (nn.Conv1d, nn.Conv2d) or (
            not model.training and model.running_mean is not None
        )
        return ndim if fixed and ndim in _DIMENSIONS[kind] else None
    if kind in _LAYERS or (kind in _DROPOUTS and not model.training):
        return ndim if ndim > 1 else None
    return None


def _is_changed(model: nn.Module) -> bool:
    """Whether calling it does something else than its class says."""
    return bool(
        "forward" in vars(model)
        or model._forward_hooks
        or model._forward_pre_hooks
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
    )
