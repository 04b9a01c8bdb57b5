"""Factors that correct the diagonal method's variances, fitted once to real draws."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..covariance import Calibrated, Fitting
from ..covariance.calibrated import channelwise
from ..gaussian import Gaussian
from .arguments import Arguments, is_gaussian
from .options import whole_number

__all__ = ["Calibration", "calibrate"]

_FORMAT = "uaprop calibration 1"
_OUTPUT = "Output"
_ELEMENTS = 16  # of each weight that tell one model from another


@dataclass(frozen=True)
class Calibration:
    """One factor for every channel at every place where the diagonal method uses a variance.

    Made by :func:`calibrate`; used by ``ua.propagate(model, x, method="calibrated", calibration=…)``.

    Attributes:
        factors: ``(channels,)`` for each place, in the order of the pass.
        places: what kind of operation is there.
        model: a fingerprint of the model's weights.
    """

    factors: tuple[Tensor, ...]
    places: tuple[str, ...]
    model: str

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file."""
        tensors = {f"{i:05d}": factor.contiguous() for i, factor in enumerate(self.factors)}
        told = {"format": _FORMAT, "places": json.dumps(self.places), "model": self.model}
        save_file(tensors, str(path), metadata=told)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what :meth:`save` wrote.

        Returns:
            The calibration.

        Raises:
            ValueError: if the file is something else.
        """
        with safe_open(str(path), framework="pt") as file:
            told = file.metadata() or {}
            if told.get("format") != _FORMAT:
                raise ValueError(f"{path} is no calibration of this version of uaprop")
            factors = tuple(file.get_tensor(name) for name in sorted(file.keys()))
        return cls(factors, tuple(json.loads(told["places"])), told["model"])

    def __repr__(self) -> str:
        count = sum(factor.numel() for factor in self.factors)
        return f"Calibration({len(self.places)} places, {count} factors)"


def fingerprint(model: Callable[..., Any]) -> str:
    """A hash of names, shapes and some elements of the model's weights; "" if it has none."""
    if not isinstance(model, nn.Module):
        return ""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict(keep_vars=True).items():
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // _ELEMENTS)][:_ELEMENTS].double().cpu()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(some.numpy().tobytes())
    return digest.hexdigest()


class _Fit:
    """A tally that learns: at each place the factor that makes the variances right on average."""

    def __init__(self) -> None:
        self.factors: list[Tensor] = []
        self.places: list[str] = []

    def corrected(self, place: str, cov: Any) -> Tensor:
        """The variances times their new factors."""
        var, true = cov.var, cov.draws.var(0)
        known = (var > 0) & (true > 0)
        ratio = torch.where(known, true / torch.where(known, var, 1), 1)
        if place == _OUTPUT:  # in the middle of what single answers need
            factor = torch.exp(_per_channel(torch.log(ratio), known))
        else:  # what makes the sum right, which is what the next layer takes
            factor = _per_channel(ratio, torch.where(known, var, 0))
        self.factors.append(factor)
        self.places.append(place)
        return var * channelwise(factor, var)


def _per_channel(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted average over everything but the channels; 1 where there is no weight."""
    weights = weights.to(values.dtype)
    others = [d for d in range(values.ndim) if d != 1] if values.ndim > 1 else []
    total, weight = values * weights, weights
    if others:
        total, weight = total.sum(others), weight.sum(others)
    return torch.where(weight > 0, total / torch.where(weight > 0, weight, 1), 1)


class Correction:
    """A tally that applies a calibration, and checks on the way that it fits."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.count = 0

    def corrected(self, place: str, cov: Any) -> Tensor:
        """The variances times this place's factors.

        Returns:
            The corrected variances.

        Raises:
            ValueError: if the calibration has something else at this place.
        """
        var, number = cov.var, self.count
        self.count += 1
        channels = var.shape[1] if var.ndim > 1 else var.numel()
        places, factors = self.calibration.places, self.calibration.factors
        if number >= len(places):
            raise ValueError(_MISFIT + f"it ends after {len(places)} places, the model goes on")
        factor = factors[number].to(var)
        if places[number] != place or factor.numel() != channels:
            raise ValueError(
                _MISFIT + f"at place {number} it has {factors[number].numel()} channels of "
                f"{places[number]}, the model {channels} of {place}"
            )
        return var * channelwise(factor, var)

    def finish(self) -> None:
        """Check that the model came to every place.

        Raises:
            ValueError: if it did not.
        """
        if self.count != len(self.calibration.places):
            raise ValueError(
                _MISFIT + f"it has {len(self.calibration.places)} places, the model {self.count}"
            )


_MISFIT = "the calibration does not fit this model: "


def calibrate(
    model: Callable[..., Any],
    inputs: Any,
    var: Tensor | float | None = None,
    *,
    std: Tensor | float | None = None,
    samples: int = 64,
    seed: int = 0,
) -> Calibration:
    """Fit one variance factor per channel and layer to real draws.

    Draws of the inputs go through the model, and the diagonal method beside them. Wherever the method
    is about to use a variance, its factor is the draws' variance over the method's, each summed over
    batch and positions (at the outputs: the geometric mean of the ratios). The method goes on with the
    corrected variance, so each place corrects only what was lost since the last. A few typical
    inputs are enough. The factors depend little on the noise's size, but belong to these weights.

    Args:
        model: any callable on tensors, usually an ``nn.Module``.
        inputs: typical inputs, a batch of them; or what :func:`~uaprop.propagate` takes, with Gaussians in
            it, and then neither ``var`` nor ``std``.
        var: the noise's variance.
        std: or its standard deviation.
        samples: draws of every input.
        seed: of the draws.

    Returns:
        The calibration, small enough to keep beside the weights: ``.save(path)``.

    Raises:
        TypeError: if the inputs are not random and no noise is given.
    """
    whole_number("samples", samples, 2)
    whole_number("seed", seed, 0)
    if isinstance(inputs, Tensor):
        inputs = Gaussian(inputs, var, std=std)
    elif var is not None or std is not None:
        raise TypeError("var and std are the noise of a plain tensor; these inputs have their own")
    arguments = Arguments.of(inputs)
    if not arguments.gaussians:
        raise TypeError("calibrate needs noisy inputs: give var or std, or ua.Gaussians")
    generator = torch.Generator(arguments.gaussians[0].device).manual_seed(seed)
    tally = _Fit()

    def start(x: Gaussian) -> Gaussian:
        draws = x.loc + x.cov.deviations(samples, generator)
        return Gaussian.from_covariance(x.loc, Fitting(x.cov.var, tally, draws))

    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        answer = arguments.run(model, [start(x) for x in arguments.gaussians])
        pytree.tree_map(at_the_end, answer, is_leaf=is_gaussian)
    return Calibration(tuple(tally.factors), tuple(tally.places), fingerprint(model))


def at_the_end(value: Any) -> Any:
    """An output with its variances corrected: the last place."""
    if not is_gaussian(value) or not isinstance(value.cov, Calibrated):
        return value
    var = value.cov.tally.corrected(_OUTPUT, value.cov)
    return Gaussian.from_covariance(value.loc, Calibrated(var, value.cov.tally))
