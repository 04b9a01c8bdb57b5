"""Fit what corrects the diagonal method's variances to real draws, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..covariance.calibrated import OUTPUT, Calibrated, Fitting, channelwise
from ..dispatch.watch import Watch
from ..gaussian import Gaussian
from ..kinds import Random
from ..numerics.chance import RandomNumbers, reseeded
from ..numerics.turns import one_at_a_time
from .applicability import fitted_range
from .arguments import Arguments, is_gaussian, mapped
from .batch_independence import BatchItems
from .calibrated import applied
from .calibration import Calibration, Law, at_the_end, fingerprint
from .calibration_file import flaw
from .curves import curve, curved
from .entrance import either_way
from .held_out import FEWEST as FEWEST_HELD_OUT
from .held_out import held_out_error
from .levels import FEWEST, Levels, levelled, slope
from .model_state import preserved
from .options import whole_number
from .own_randomness import refuse_own_randomness

__all__ = ["calibrate"]


class _Fit:
    """A tally that learns: at each place what makes the variances right on average.

    Attributes:
        outputs: the samples of every output of the model.
    """

    def __init__(self, samples: int) -> None:
        self.outputs: list[Tensor] = []
        self.factors: list[Tensor] = []
        self.laws: list[Law] = []
        self.places: list[str] = []
        self.levels = Levels()
        self.freedom = samples - 1

    def corrected(self, place: str, x: Random) -> Tensor:
        """The variances times their new factors."""
        var, true = x.cov.var, x.cov.draws.var(0)
        if place == OUTPUT:
            self.outputs.append(x.cov.draws)
        level = self.levels.of(var)
        law = Law()
        if level is not None:
            short = _short(place, self._scaled(place, var, true), true)
            bounds = (float(level.mean()), *map(float, level.aminmax()))
            law = law._replace(slope=slope(level, short), levels=bounds)
            var = levelled(var, var.ndim, level, law.slope, *law.levels)
        if var.ndim == 2 and len(var) >= FEWEST:  # scores, or what is like them: no maps
            lacking = (true / self._scaled(place, var, true)).log()
            law = law._replace(curve=tuple(curve(x.loc, lacking)))
            var = curved(var, x.loc, *law.curve)
        self.factors.append(self._factor(place, var, true))
        self.laws.append(law)
        self.places.append(place)
        return var * channelwise(self.factors[-1], var)

    def found(self, **further: Any) -> Calibration:
        """What was learned.

        Args:
            **further: the other fields of the calibration.

        Returns:
            The calibration.
        """
        slopes, levels, curves = (
            torch.tensor([law[i] for law in self.laws], dtype=torch.float64, device="cpu")
            for i in range(3)
        )
        factors, places = tuple(self.factors), tuple(self.places)
        return Calibration(factors, slopes, levels, curves, places=places, **further)

    def _scaled(self, place: str, var: Tensor, true: Tensor) -> Tensor:
        return var * channelwise(self._factor(place, var, true), var)

    def _factor(self, place: str, var: Tensor, true: Tensor) -> Tensor:
        known = (var > 0) & (true > 0)
        ratio = torch.where(known, true / torch.where(known, var, 1), 1)
        if place != OUTPUT:  # what makes the sum right, which is what the next layer takes
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
    if place == OUTPUT:
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
    the input, and in scores ``(batch, outputs)`` on the mean: with four inputs or more, a power of how
    much the variances have grown since the first layer is fitted, too, and a curve over the mean. The
    method goes on with the corrected variance, so each place corrects only what was lost since the last.
    Some dozens of typical inputs are enough. The factors depend little on the noise's size, but belong to
    these weights.

    Two more things are kept. How far the method is off for inputs of this kind that it was not fitted to
    (``held_out``): factors are fitted to every second input for that, and tried on the others, which takes as
    long as the fit itself. And what the inputs were like (``inputs``), so that others are noticed.

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
        ValueError: if the inputs have no elements, or the model's outputs for them are not finite.
    """
    whole_number("samples", samples, 2)
    whole_number("seed", seed, 0)
    if isinstance(inputs, Tensor):
        inputs = Gaussian(inputs, var, std=std)
    elif var is not None or std is not None:
        raise TypeError("var and std are the noise of a plain tensor; these inputs have their own")
    arguments = Arguments.of(inputs)
    arguments.check_values("calibrate")
    if not arguments.gaussians:
        raise TypeError("calibrate needs noisy inputs: give var or std, or ua.Gaussians")
    if any(x.numel() == 0 for x in arguments.gaussians):
        raise ValueError(
            "calibrate learns from inputs, and these have no elements; give some dozens"
        )
    tally: _Fit
    entered: Callable[..., Any] = model

    def draws() -> list[Tensor]:
        noise = RandomNumbers.seeded(seed, device=arguments.gaussians[0].device)
        return [x.loc + x.cov.deviations(samples, noise) for x in arguments.gaussians]

    def fit(way: Callable[..., Any]) -> None:
        nonlocal tally, entered
        tally, entered = _fitted(way, arguments, draws()), way

    with Watch() as watch, one_at_a_time, preserved(model):
        with (
            refuse_own_randomness("calibrated", model, arguments),
            torch.inference_mode(False),  # gains are derivatives
            torch.no_grad(),
            reseeded(seed, 1),
        ):
            either_way(model, arguments, fit)
            watch.check()
        with torch.inference_mode(False), torch.no_grad(), reseeded(seed, 1):
            held_out = _held_out(entered, arguments, draws, tally.outputs)
            inputs = torch.stack([fitted_range(x) for x in arguments.gaussians])
    found = tally.found(held_out=held_out, inputs=inputs, model=fingerprint(model))
    if problem := flaw(vars(found)):
        raise ValueError(
            f"no calibration can be fitted to these inputs: {problem}. The model's outputs or "
            "their variances are not finite there."
        )
    return found


def _fitted(way: Callable[..., Any], arguments: Arguments, draws: Sequence[Tensor]) -> _Fit:
    """What is learned from samples of the random arguments."""
    tally = _Fit(len(draws[0]))
    random = [
        Gaussian._from_covariance(x.loc, Fitting(x.cov.var, tally, each))
        for x, each in zip(arguments.gaussians, draws, strict=True)
    ]
    mapped(at_the_end, arguments.run(way, random))
    return tally


def _held_out(
    way: Callable[..., Any],
    arguments: Arguments,
    draws: Callable[[], list[Tensor]],
    outputs: Sequence[Tensor],
) -> Tensor:
    """The errors of every output for inputs that were not fitted, ``(outputs, 2)``; ``(0, 2)`` if unknown."""
    unknown = torch.zeros(0, 2, dtype=torch.float64, device="cpu")
    if arguments.batch is None or arguments.batch < FEWEST_HELD_OUT:
        return unknown
    if not BatchItems(way, arguments).are_rowwise:  # a half would have other outputs
        return unknown
    halves = slice(0, None, 2), slice(1, None, 2)
    pieces: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in outputs]
    for own, other in (halves, halves[::-1]):
        try:
            tally = _fitted(way, arguments.cut(own), [stack[:, own] for stack in draws()])
            half = tally.found(held_out=unknown, inputs=unknown, model="")
            answer = applied(way, arguments.cut(other), half)
        except Exception:  # a model that takes no other batch size
            return unknown
        found = [y for y in pytree.tree_leaves(answer, is_leaf=is_gaussian) if is_gaussian(y)]
        found = [y for y in found if isinstance(y.cov, Calibrated)]
        if [y.shape for y in found] != [stack[0, other].shape for stack in outputs]:
            return unknown
        for y, stack, piece in zip(found, outputs, pieces, strict=True):
            piece.append((y.loc, y.cov.var, stack[:, other]))
    errors = [held_out_error(piece) for piece in pieces]
    return torch.tensor(errors, dtype=torch.float64, device="cpu").reshape(-1, 2)
