"""Models by name: ``torchvision:NAME``, ``timm:NAME``, ``transformers:TYPE``, FILE.pt2, or a callable."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import typer
from torch import nn

__all__ = ["FORMS", "Target", "load", "sizes"]

FORMS = (
    "torchvision:NAME, timm:NAME, transformers:TYPE or transformers:FOLDER (a folder with a "
    "config.json), FILE.pt2 (of torch.export), or package.module:callable"
)


@dataclass
class Target:
    """A model with example arguments; its weights are random unless a file or a callable brings them."""

    model: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def load(target: str, shape: tuple[int, ...] | None, trust: bool = False) -> Target:
    """The model of that name, with an example input.

    Args:
        target: one of the forms in ``FORMS``.
        shape: of the input; None for the model's usual one.
        trust: whether a file may run code of its author.

    Returns:
        Model and arguments.

    Raises:
        typer.BadParameter: if there is no such model, it needs a shape, or it is a file that is not trusted.
    """
    if target.endswith(".pt2"):
        return _program(Path(target), trust)
    source, colon, name = target.partition(":")
    if not colon or not name:
        raise typer.BadParameter(f"{target!r} is none of: {FORMS}.")
    known: dict[str, Callable[..., Target]] = {
        "torchvision": _torchvision,
        "timm": _timm,
        "transformers": _transformers,
    }
    return known.get(source, lambda n, s: _callable(source, n, s))(name, shape)


def sizes(shape: str | None) -> tuple[int, ...] | None:
    """A shape that was given as ``1,3,224,224``; None if none was.

    Returns:
        Its sizes.

    Raises:
        typer.BadParameter: if it is no shape.
    """
    try:
        return None if shape is None else tuple(int(part) for part in shape.split(","))
    except ValueError:
        raise typer.BadParameter(f"{shape!r} is no shape; write it as 1,3,224,224.") from None


def _program(path: Path, trust: bool) -> Target:
    """A program of ``torch.export``."""
    # Its loader unpickles objects, evaluates expressions as Python and loads compiled libraries, and has no
    # mode that does none of these. To look for pickles alone would not make a file safe.
    if not path.exists():
        raise typer.BadParameter(f"there is no file {path}.")
    if not trust:
        raise typer.BadParameter(
            f"{path} can run code on this computer as soon as it is loaded: torch.export.load unpickles "
            "objects and evaluates expressions that the file brings. If you trust the author of the "
            "file, repeat the command with --trust."
        )
    try:
        program = torch.export.load(path)
    except Exception as error:  # of many kinds, for a file that is damaged or something else
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
        raise typer.BadParameter(f"{path} is no program of torch.export: {reason}") from error
    if program.example_inputs is None:
        raise typer.BadParameter(f"{path} was saved without example inputs.")
    args, kwargs = program.example_inputs
    return Target(program, tuple(args), dict(kwargs))


def _torchvision(name: str, shape: tuple[int, ...] | None) -> Target:
    models = _imported("torchvision.models")
    if name not in models.list_models():
        raise typer.BadParameter(f"torchvision has no model {name!r}.")
    bare = {"weights": None, "weights_backbone": None} if "." not in name else {"weights": None}
    try:
        model = models.get_model(name, **bare)
    except TypeError:
        model = models.get_model(name, weights=None)
    side = 299 if name == "inception_v3" else 224
    return Target(model.eval(), (torch.randn(shape or (1, 3, side, side)),))


def _timm(name: str, shape: tuple[int, ...] | None) -> Target:
    timm = _imported("timm")
    if not timm.is_model(name):
        raise typer.BadParameter(f"timm has no model {name!r}.")
    model = timm.create_model(name).eval()
    return Target(model, (torch.randn(shape or (1, *model.default_cfg["input_size"])),))


def _transformers(name: str, shape: tuple[int, ...] | None) -> Target:
    """A folder with a config.json, a name whose configuration is in the local cache, or a model type."""
    transformers = _imported("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(
            name, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError):
        try:
            config = transformers.AutoConfig.for_model(name)
        except ValueError:
            raise typer.BadParameter(
                f"{name!r} is neither a folder with a config.json, nor in the local cache, nor a "
                "model type of transformers such as bert, gpt2, vit or whisper."
            ) from None
    try:
        model = transformers.AutoModel.from_config(config, trust_remote_code=False).eval()
    except ValueError as error:  # such as a model whose code is in the folder
        reason = str(error).strip().partition("\n")[0]
        raise typer.BadParameter(f"transformers makes no model of {name!r}: {reason}") from None
    except ImportError as error:  # it imports its models when they are asked for
        raise _broken("transformers", error) from error
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
    return Target(model, (), _example(model, config, shape))


def _example(model: Any, config: Any, shape: tuple[int, ...] | None) -> dict[str, Any]:
    """The first input of a model of transformers, random where it can be."""
    name = model.main_input_name
    if name == "pixel_values":
        side = getattr(config, "image_size", 224)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        usual: tuple[int, ...] = (1, getattr(config, "num_channels", 3), height, width)
    elif name == "input_features":
        usual = (1, config.num_mel_bins, 2 * getattr(config, "max_source_positions", 1500))
    elif name == "input_values":
        usual = (1, 16000)
    else:  # token numbers are not random: their embeddings are
        name, usual = "inputs_embeds", (1, 16, model.get_input_embeddings().weight.shape[1])
    return {name: torch.randn(shape or usual)}


def _callable(module: str, name: str, shape: tuple[int, ...] | None) -> Target:
    sys.path.insert(0, "")  # as python -m does
    found = getattr(_imported(module), name, None)
    if found is None or not callable(found):
        raise typer.BadParameter(f"{module} has no callable {name!r}.")
    model = found
    if not isinstance(found, nn.Module) and _makes_model(found):
        model = found()
    if isinstance(model, nn.Module):
        model.eval()
    if shape is None:
        raise typer.BadParameter(
            f"give the shape of an input of {module}:{name}, as in --shape 1,3,32,32."
        )
    return Target(model, (torch.randn(shape),))


def _makes_model(found: Any) -> bool:
    """Whether it is a class of modules, or a function without arguments that it needs."""
    if inspect.isclass(found):
        return True
    if inspect.isbuiltin(found):
        return False
    parameters = inspect.signature(found).parameters.values()
    return all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters
    )


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"there is no module {error.name}; is it installed?") from None
    except Exception as error:  # such as a build for another torch
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> typer.BadParameter:
    cause = str(error.__cause__ or error).strip().partition("\n")[0]
    return typer.BadParameter(f"{name} cannot be imported here: {cause}")
