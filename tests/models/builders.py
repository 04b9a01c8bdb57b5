"""What a model of the table is, and how to get one from each package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .packages import import_torchvision

__all__ = ["MODELS", "Model", "add", "timm", "torchvision", "transformers"]

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Model:
    """One model.

    Attributes:
        name: package and name.
        build: makes it, with the weights of its constructor.
        shape: of one input.
        argument: the input's name, if it is not the first positional argument.
    """

    name: str
    build: Build
    shape: tuple[int, ...]
    argument: str | None = None

    def inputs(self, count: int, seed: int) -> Tensor:
        """Random inputs: pictures have rough shapes and grain, everything else is white noise."""
        generator = torch.Generator().manual_seed(seed)
        grain = torch.randn((count, *self.shape), generator=generator)
        if len(self.shape) != 3:
            return grain
        rough = torch.randn((count, self.shape[0], 3, 3), generator=generator)
        rough = nn.functional.interpolate(rough, self.shape[1:], mode="bicubic")
        return rough + 0.5 * grain

    def arguments(self, x: Any) -> Any:
        """What ``ua.propagate`` takes: the input, or a dict with its name."""
        return x if self.argument is None else {self.argument: x}

    def run(self, network: nn.Module, x: Any) -> Any:
        """The network's answer."""
        return network(x) if self.argument is None else network(**{self.argument: x})


MODELS: dict[str, Model] = {}


def _found(path: str) -> Any:
    """What a dotted path names, such as ``timm.layers.Mlp``."""
    import_torchvision()  # timm and transformers import it too
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def add(name: str, build: Build, shape: tuple[int, ...], **options: Any) -> None:
    MODELS[name] = Model(name, build, shape, **options)


def torchvision(
    name: str,
    size: int | tuple[int, ...] = 64,
    *,
    at: str = "",
    num_classes: int = 10,
    **options: Any,
) -> None:
    """A function or class ``at`` in torchvision.models, by default of the model's name."""

    def build() -> nn.Module:
        values = {key: _found(v[1:]) if _is_path(v) else v for key, v in options.items()}
        network: nn.Module = _found(f"torchvision.models.{at or name}")(
            num_classes=num_classes, **values
        )
        return network

    shape = (3, size, size) if isinstance(size, int) else (3, *size)
    add(f"torchvision/{name}", build, shape)


def timm(name: str, size: int = 64, *, at: str = "", **options: Any) -> None:
    """A registered model, or a class ``at`` in timm.models."""

    def build() -> nn.Module:
        values = {key: _found(v[1:]) if _is_path(v) else v for key, v in options.items()}
        if at:
            network: nn.Module = _found(f"timm.models.{at}")(num_classes=10, **values)
        else:
            network = _found("timm.create_model")(name, num_classes=10, **values)
        return network

    add(f"timm/{name}", build, (3, size, size))


def _is_path(value: Any) -> bool:
    """Whether an option stands for what it names: ``@timm.layers.Mlp``."""
    return isinstance(value, str) and value.startswith("@")


def transformers(
    name: str,
    kind: str,
    shape: tuple[int, ...],
    argument: str,
    *,
    at: str = "",
    **options: Any,
) -> None:
    """A model class ``at`` in transformers, by default ``{kind}Model``, from a ``{kind}Config``."""

    def build() -> nn.Module:
        config = _found(f"transformers.{kind}Config")(**options)
        network: nn.Module = _found(f"transformers.{at or kind + 'Model'}")(config)
        return network

    add(f"transformers/{name}", build, shape, argument=argument)
