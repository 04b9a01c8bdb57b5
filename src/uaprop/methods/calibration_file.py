"""Calibrations in safetensors files, and which numbers a calibration may have.

A file has its own checksum: a factor that lost a bit is a number like any other, and would change error bars
without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..checksum import checksum
from ..covariance.calibrated import OUTPUT
from .curves import KNOTS

__all__ = ["flaw", "read", "write"]

_FORMAT = "uaprop calibration 6"
_WIDTHS: dict[str, tuple[int, ...]] = {"slopes": (), "levels": (3,), "curves": (2 + KNOTS,)}
_GUARDS = ("held_out", "inputs")
_TENSORS = (*_WIDTHS, *_GUARDS)  # beside the factors
_ROUNDING = 0.02  # by which an average in bfloat16 can be off, relatively
_METADATA = {"format", "places", "model", "checksum"}


def write(path: str | Path, fields: Mapping[str, Any]) -> None:
    """Write the fields of a calibration to a file."""
    tensors = {f"{i:05d}": factor for i, factor in enumerate(fields["factors"])}
    tensors |= {name: fields[name] for name in _TENSORS}
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    places, model = json.dumps(fields["places"]), fields["model"]
    metadata = {"format": _FORMAT, "places": places, "model": model}
    metadata["checksum"] = checksum(tensors, places, model)
    save_file(tensors, str(path), metadata=metadata)


def read(path: str | Path) -> dict[str, Any]:
    """Read what :func:`write` wrote.

    Returns:
        The fields of the calibration.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is something else, damaged, or has impossible numbers.
    """
    with open(path, "rb"):  # a missing file or a folder has its usual error
        pass
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            # copies: a tensor in mapped memory changes with the file, and ends the process if that shrinks
            tensors = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is no calibration, or damaged: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise ValueError(
            f"{path} is no calibration of this version of uaprop: its format is "
            f"{metadata.get('format')!r}, not {_FORMAT!r}; make it again with ua.calibrate"
        )
    if metadata.keys() != _METADATA:
        raise ValueError(f"{path} is a damaged calibration: its metadata are {sorted(metadata)}")
    if metadata["checksum"] != checksum(tensors, metadata["places"], metadata["model"]):
        raise ValueError(
            f"{path} is a damaged or edited calibration: its checksum is wrong; make it again "
            "with ua.calibrate"
        )
    fields = _fields(tensors, metadata)
    problem = "parts are missing" if fields is None else flaw(fields)
    if fields is None or problem:
        raise ValueError(f"{path} is no valid calibration: {problem}")
    return fields


def flaw(fields: Mapping[str, Any]) -> str:
    """What is wrong with the numbers of a calibration; empty if nothing is.

    Args:
        fields: of a calibration, by name.

    Returns:
        The first flaw.
    """
    places: Sequence[str] = fields["places"]
    factors: Sequence[Tensor] = fields["factors"]
    if not places or not all(isinstance(place, str) for place in places):
        return f"its places are {places!r}, not names"
    if len(factors) != len(places):
        return f"it has {len(places)} places, and factors for {len(factors)}"
    named = {f"the factors at place {i}": factor for i, factor in enumerate(factors)}
    for name, factor in named.items():
        if factor.ndim > 1:
            return f"{name} have the shape {tuple(factor.shape)}, not (channels,)"
    for name, width in _WIDTHS.items():
        tensor, shape = fields[name], (len(places), *width)
        if tuple(tensor.shape) != shape:
            return f"{name} has the shape {tuple(tensor.shape)}, not {shape}"
        named[name] = tensor
    if problem := _shape_of_guards(fields):
        return problem
    named |= {name: fields[name] for name in _GUARDS}
    for name, tensor in named.items():
        if not tensor.is_floating_point():
            return f"{name}: {tensor.dtype} is no floating-point type"
        if not tensor.isfinite().all():
            return f"{name}: NaN or infinity"
    for i, factor in enumerate(factors):
        if (factor < 0).any():
            return f"the factors at place {i}: {float(factor.min()):g} is negative"
    centre, low, high = fields["levels"].unbind(1)
    rounding = _ROUNDING * (1 + centre.abs())
    if ((low > high) | (centre < low - rounding) | (centre > high + rounding)).any():
        return "levels: the average is not between the least and the greatest"
    curves = fields["curves"]
    if ((curves[:, 0] >= curves[:, 1]) & (curves[:, 2:] != 0).any(1)).any():
        return "curves: the first knot is not before the last"
    if (fields["held_out"] < 0).any():
        return f"held_out: {float(fields['held_out'].min()):g} is negative"
    if (fields["inputs"].diff() < 0).any():
        return "inputs: the ends of a range are not in order"
    return ""


def _shape_of_guards(fields: Mapping[str, Any]) -> str:
    """What is wrong with the shapes of held-out errors and of the inputs' ranges."""
    outputs = sum(place == OUTPUT for place in fields["places"])
    errors, ranges = (tuple(fields[name].shape) for name in _GUARDS)
    if errors not in ((outputs, 2), (0, 2)):
        return f"held_out has the shape {errors}, not {(outputs, 2)} or (0, 2)"
    if ranges[1:] != (3, 4) or ranges[0] == 0:
        return f"inputs has the shape {ranges}, not (inputs, 3, 4)"
    return ""


def _fields(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The fields of a calibration; None if some are missing."""
    try:
        places = json.loads(metadata["places"])
    except ValueError:
        return None
    count = len(tensors) - len(_TENSORS)
    numbered = [f"{i:05d}" for i in range(count)]
    if not isinstance(places, list) or tensors.keys() != {*numbered, *_TENSORS}:
        return None
    rest = {name: tensors[name] for name in _TENSORS}
    factors = tuple(tensors[name] for name in numbered)
    return {"factors": factors, **rest, "places": tuple(places), "model": metadata["model"]}
