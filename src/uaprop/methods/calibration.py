"""What corrects the diagonal method's variances: factors and laws, as they are kept and applied."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..covariance.calibrated import OUTPUT, Calibrated, channelwise
from ..gaussian import Gaussian
from ..kinds import Random
from ..numerics.lazy import lazy
from .calibration_file import read, write
from .curves import KNOTS, curved
from .levels import Levels, levelled

__all__ = ["Calibration", "Correction", "Law", "at_the_end", "fingerprint"]

_ELEMENTS = 16  # of each weight that tell one model from another


class Law(NamedTuple):
    """How variances at a place depend on their input's level, and on the mean."""

    slope: float = 0.0
    levels: tuple[float, ...] = (0.0, 0.0, 0.0)
    curve: tuple[float, ...] = (0.0,) * (2 + KNOTS)


@dataclass(frozen=True)
class Calibration:
    """A factor for every channel, and laws by input and mean, wherever the diagonal method uses a variance.

    Made by :func:`calibrate`; used by ``ua.propagate(model, x, method="calibrated", calibration=…)``.

    Attributes:
        factors: ``(channels,)`` for each place, in the order of the pass.
        slopes: ``(places,)``, by which power of an input's level its variances are multiplied.
        levels: ``(places, 3)``, the average, least and greatest level of the inputs it was fitted to.
        curves: ``(places, 2 + knots)``, by the logarithms of which factors variances are multiplied according
            to their mean (:mod:`~uaprop.methods.curves`): the first and last knot, and the value at each.
        held_out: ``(outputs, 2)``, how far the method is off for inputs of the same kind that it was not
            fitted to (:mod:`~uaprop.methods.held_out`): the root mean square of the relative error of the
            standard deviation, and of the mean's error in standard deviations. ``(0, 2)`` if that is not
            known: for fewer than four inputs, without a batch, or if its items influence each other.
        inputs: ``(random inputs, 3, 4)``, the range of three statistics of the inputs that it was fitted to
            (:mod:`~uaprop.methods.applicability`).
        places: what kind of operation is there.
        model: a fingerprint of the model's weights.
    """

    factors: tuple[Tensor, ...]
    slopes: Tensor
    levels: Tensor
    curves: Tensor
    held_out: Tensor
    inputs: Tensor
    places: tuple[str, ...]
    model: str

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file."""
        write(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what :meth:`save` wrote.

        Returns:
            The calibration.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is something else, damaged, or has impossible numbers.
        """
        return cls(**read(path))

    @lazy
    def laws(self) -> list[Law]:
        """What holds at each place, as numbers: a traced program has them as constants."""
        numbers = zip(self.slopes.tolist(), self.levels.tolist(), self.curves.tolist(), strict=True)
        return [Law(slope, tuple(levels), tuple(curve)) for slope, levels, curve in numbers]

    def with_factors(self, factors: Iterable[Tensor]) -> Calibration:
        """The same with its factors in other tensors, as a traced program has them."""
        other = replace(self, factors=tuple(factors))
        vars(other)["laws"] = self.laws
        return other

    def __repr__(self) -> str:
        count = sum(factor.numel() for factor in self.factors)
        if len(self.held_out):
            std, mean = self.held_out.amax(0).tolist()
            most = "up to " if len(self.held_out) > 1 else ""
            error = f"held-out error {most}{std:.1%} of std, and of the mean {most}{mean:.2g} std"
        else:
            error = "no held-out error"
        return f"Calibration({len(self.places)} places, {count} factors, {error})"


def fingerprint(model: Callable[..., Any]) -> str:
    """A hash of names, shapes and some elements of the model's weights; "" if it has none."""
    if not isinstance(model, nn.Module):
        return ""
    weights = model.state_dict(keep_vars=True)
    shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in weights.items()]
    alike: dict[Any, list[Tensor]] = {}
    with torch.no_grad():
        for tensor in weights.values():
            alike.setdefault((tensor.dtype, tensor.device), []).append(_some(tensor))
        # Few calls for all tensors: several for each would take as long as a small network.
        values = [array("d", torch.cat(some).tolist()) for some in alike.values()]
    digest = hashlib.sha256("\n".join(shapes).encode())
    for some in values:
        digest.update(some.tobytes())
    return digest.hexdigest()


def _some(tensor: Tensor) -> Tensor:
    """A few elements that are spread over the tensor."""
    elements = tensor.numel()
    step = max(1, elements // _ELEMENTS)
    tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
    return tensor.as_strided((min(elements, _ELEMENTS),), (step,), tensor.storage_offset())


class Correction:
    """A tally that applies a calibration, and checks on the way that it fits."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.count = 0
        self.misfit = ""
        self.levels = Levels()

    def corrected(self, place: str, x: Random) -> Tensor:
        """The variances times this place's factors, power law and curve.

        Where the calibration has something else at this place, :meth:`finish` tells: an error from
        here would look like one of the model's.

        Returns:
            The corrected variances.
        """
        var, number = x.cov.var, self.count
        self.count += 1
        channels = var.shape[1] if var.ndim > 1 else var.numel()
        places, factors = self.calibration.places, self.calibration.factors
        if number >= len(places):
            self.misfit = self.misfit or f"it ends after {len(places)} places, the model goes on"
        elif places[number] != place or factors[number].numel() != channels:
            self.misfit = self.misfit or (
                f"at place {number} it has {factors[number].numel()} channels of "
                f"{places[number]}, the model {channels} of {place}"
            )
        if self.misfit:
            return var
        factor, law = channelwise(factors[number].to(var), var), self.calibration.laws[number]
        if number == 0 or law.slope:
            factor = levelled(factor, var.ndim, self.levels.of(var), law.slope, *law.levels)
        return var * curved(factor, x.loc, *law.curve)

    def finish(self) -> None:
        """Check that the model came to every place, and that each was as the calibration has it.

        Raises:
            ValueError: if not.
        """
        places = len(self.calibration.places)
        if not self.misfit and self.count != places:
            self.misfit = f"it has {places} places, the model {self.count}"
        if self.misfit:
            raise ValueError(f"the calibration does not fit this model: {self.misfit}")


def at_the_end(value: Gaussian) -> Gaussian:
    """An output with its variances corrected: the last place."""
    if not isinstance(value.cov, Calibrated):
        return value
    var = value.cov.tally.corrected(OUTPUT, value)
    return Gaussian._from_covariance(value.loc, Calibrated(var, value.cov.tally))
