"""Factors that correct the diagonal method's variances, fitted once to real draws."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..covariance.calibrated import Calibrated, Fitting, channelwise
from ..gaussian import Gaussian
from ..numerics.chance import reseed, seeded
from ..numerics.turns import one_at_a_time
from .arguments import Arguments, is_gaussian
from .levels import Levels, levelled, slope
from .options import whole_number

__all__ = ["Calibration", "calibrate"]

_FORMAT = "uaprop calibration 2"
_OUTPUT = "Output"
_ELEMENTS = 16  # of each weight that tell one model from another


@dataclass(frozen=True)
class Calibration:
    """A factor for every channel, and a power law, wherever the diagonal method uses a variance.

    Made by :func:`calibrate`; used by ``ua.propagate(model, x, method="calibrated", calibration=…)``.

    Attributes:
        factors: ``(channels,)`` for each place, in the order of the pass.
        slopes: ``(places,)``, by which power of an input's level its variances are multiplied.
        levels: ``(places, 3)``, the average, least and greatest level of the inputs it was fitted to.
        places: what kind of operation is there.
        model: a fingerprint of the model's weights.
    """

    factors: tuple[Tensor, ...]
    slopes: Tensor
    levels: Tensor
    places: tuple[str, ...]
    model: str

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file."""
        tensors = {f"{i:05d}": factor.contiguous() for i, factor in enumerate(self.factors)}
        tensors |= {"slopes": self.slopes.contiguous(), "levels": self.levels.contiguous()}
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
            stored = {name: file.get_tensor(name) for name in sorted(file.keys())}
        slopes, levels = stored.pop("slopes"), stored.pop("levels")
        places = tuple(json.loads(told["places"]))
        return cls(tuple(stored.values()), slopes, levels, places, told["model"])

    @functools.cached_property
    def laws(self) -> list[list[float]]:
        """For each place its slope and levels, as numbers: a traced program has them as constants."""
        laws: list[list[float]] = torch.cat([self.slopes.unsqueeze(1), self.levels], 1).tolist()
        return laws

    def with_factors(self, factors: Iterable[Tensor]) -> Calibration:
        """The same with its factors in other tensors, as a traced program has them."""
        other = replace(self, factors=tuple(factors))
        vars(other)["laws"] = self.laws
        return other

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
        digest.update(array("d", some.tolist()).tobytes())  # no numpy inside of torch.func.grad
    return digest.hexdigest()


class _Fit:
    """A tally that learns: at each place what makes the variances right on average."""

    def __init__(self, samples: int) -> None:
        self.factors: list[Tensor] = []
        self.laws: list[list[float]] = []
        self.places: list[str] = []
        self.levels = Levels()
        self.freedom = samples - 1

    def corrected(self, place: str, cov: Any) -> Tensor:
        """The variances times their new factors."""
        var, true = cov.var, cov.draws.var(0)
        level = self.levels.of(var)
        law = [0.0, 0.0, 0.0, 0.0]
        if level is not None:
            short = _short(place, var * channelwise(self._factor(place, var, true), var), true)
            law = [slope(level, short), float(level.mean()), *map(float, level.aminmax())]
        var = levelled(var, var.ndim, level, *law)
        self.factors.append(self._factor(place, var, true))
        self.laws.append(law)
        self.places.append(place)
        return var * channelwise(self.factors[-1], var)

    def _factor(self, place: str, var: Tensor, true: Tensor) -> Tensor:
        known = (var > 0) & (true > 0)
        ratio = torch.where(known, true / torch.where(known, var, 1), 1)
        if place != _OUTPUT:  # what makes the sum right, which is what the next layer takes
            return _per_channel(ratio, torch.where(known, var, 0))
        # what makes std/σ right on average, which is what single answers need
        return (_per_channel(ratio.rsqrt(), known) / _inverse_chi(self.freedom)).pow(-2)


def _inverse_chi(freedom: int) -> float:
    """How much too large 1/σ is on average, if σ is estimated with so many degrees of freedom."""
    if freedom < 2:
        return 1.0
    return (
        math.exp(math.lgamma((freedom - 1) / 2) - math.lgamma(freedom / 2)) * (freedom / 2) ** 0.5
    )


def _short(place: str, var: Tensor, true: Tensor) -> Tensor:
    """What the logarithms of each input's variances lack; not a number where there are none."""
    if place == _OUTPUT:
        return (true / var).log().nan_to_num(0, 0, 0).flatten(1).mean(1)
    return (true.flatten(1).sum(1) / var.flatten(1).sum(1)).log()


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
        self.misfit = ""
        self.levels = Levels()

    def corrected(self, place: str, cov: Any) -> Tensor:
        """The variances times this place's factors and power law.

        Where the calibration has something else at this place, :meth:`finish` tells: an error from
        here would look like one of the model's.

        Returns:
            The corrected variances.
        """
        var, number = cov.var, self.count
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
        level = self.levels.of(var) if number == 0 or law[0] else None
        return var * levelled(factor, var.ndim, level, *law)

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
    batch and positions (at the outputs: such that std/σ is 1 on average). What is lost also depends on
    the input: with four inputs or more, a power of how much the variances have grown since the first
    layer is fitted, too. The method goes on with the corrected variance, so each place corrects only
    what was lost since the last. Some dozens of typical inputs are enough. The factors depend little on
    the noise's size, but belong to these weights.

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
    generator = seeded(seed, device=arguments.gaussians[0].device)
    tally = _Fit(samples)

    def start(x: Gaussian) -> Gaussian:
        draws = x.loc + x.cov.deviations(samples, generator)
        return Gaussian.from_covariance(x.loc, Fitting(x.cov.var, tally, draws))

    with one_at_a_time, torch.no_grad(), torch.random.fork_rng():
        reseed(seed, 1)
        answer = arguments.run(model, [start(x) for x in arguments.gaussians])
        pytree.tree_map(at_the_end, answer, is_leaf=is_gaussian)
    laws = torch.tensor(tally.laws, dtype=torch.float64).reshape(-1, 4)
    return Calibration(
        tuple(tally.factors), laws[:, 0], laws[:, 1:], tuple(tally.places), fingerprint(model)
    )


def at_the_end(value: Any) -> Any:
    """An output with its variances corrected: the last place."""
    if not is_gaussian(value) or not isinstance(value.cov, Calibrated):
        return value
    var = value.cov.tally.corrected(_OUTPUT, value.cov)
    return Gaussian.from_covariance(value.loc, Calibrated(var, value.cov.tally))
