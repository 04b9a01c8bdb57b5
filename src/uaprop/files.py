"""Gaussians in safetensors files, with their own checksum."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .checksum import checksum
from .covariance import Covariance, Sources
from .gaussian import Gaussian
from .provenance import Provenance
from .storage import FORMAT, State, packed, unpacked

__all__ = ["load", "write"]


def write(
    path: str | Path,
    mean: Tensor,
    cov: Covariance,
    provenance: Provenance | None,
    attribution: bool,
) -> None:
    """Write a Gaussian to a safetensors file."""
    if provenance is not None and not attribution:
        provenance = replace(provenance.evaluated(), shares=())
    notes, tensors, sources = packed(mean, cov, provenance)
    notes["sources"] = [list(part.state()) for part in sources]
    stored, seen = {}, set[int]()
    for name, tensor in tensors.items():
        values = tensor.detach().as_subclass(Tensor).cpu().contiguous()
        # the format has no tensors that share memory
        stored[name] = values.clone() if values.data_ptr() in seen else values
        seen.add(stored[name].data_ptr())
    text = json.dumps(notes)
    metadata = {"format": FORMAT, "notes": text, "checksum": checksum(stored, text)}
    save_file(stored, str(path), metadata=metadata)


def load(path: str | Path) -> Gaussian:
    """Read a Gaussian that :meth:`~uaprop.Gaussian.save` wrote.

    Returns:
        The same Gaussian, on the CPU.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds no Gaussian, or a damaged one.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format is {metadata.get('format')!r}, not {FORMAT!r}")
            # copies: a tensor in mapped memory changes with the file, and ends the process if that shrinks
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if metadata["checksum"] != checksum(tensors, metadata["notes"]):
            raise ValueError("it is damaged or was edited: its checksum is wrong")
        notes = json.loads(metadata["notes"])
        sources = tuple(Sources.of_state(*part) for part in notes["sources"])
        parts = unpacked(State(notes, tensors, sources))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r} holds no Gaussian that can be read: {error}") from error
    return Gaussian.__new__(Gaussian).restore(*parts)
