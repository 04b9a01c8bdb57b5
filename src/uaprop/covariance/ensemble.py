"""Real draws, carried through a model together, with the average of their derivatives.

No Gaussian is assumed anywhere: the draws take every operation as it is. Beside them goes a mean whose
derivative at each operation is the *average over the draws* of the operation's own (for ReLU the
fraction that is active, for a maximum the fraction of wins). Differentiated backwards it gives the
response of the network averaged layer by layer, which is what the hybrid method needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kinds import Bilinear, Elementwise, Joint, Larger, Linear, Noise, Random, Select
from ..numerics.chance import RandomNumbers
from ..numerics.draws import own_draws
from .base import Covariance, Result, composed, per_batch_element
from .response import with_gain, with_gains
from .stacked import across, expanded

__all__ = ["Ensemble"]


class Ensemble(Covariance):
    """Draws of a random tensor, ``(draws, *shape)``; the same draw in all tensors of a pass."""

    __slots__ = ("_var", "values")

    needs_functions = True
    maximum_first = False  # samples take maxima as they are

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._var: Tensor | None = None

    @property
    def responds(self) -> bool:
        """The mean's derivative is the response."""
        return True

    @property
    def var(self) -> Tensor:
        """The draws' variances; exactly zero where all draws are the same."""
        if self._var is None:
            self._var = _variances(self.values)
        return self._var

    def dense(self) -> Tensor:
        """The draws' covariance in each batch element."""
        flat = across(per_batch_element, self.values - self.values.mean(0))
        return torch.einsum("n...i,n...j->...ij", flat, flat) / (len(flat) - 1)

    def deviations(self, count: int, noise: RandomNumbers) -> Tensor:
        """Samples with replacement from the ensemble."""
        device, size = self.values.device, (count,)
        chosen = torch.randint(len(self.values), size, generator=noise.generator, device=device)
        return self.values[chosen] - self.values.mean(0)

    # ------------------------------------------------------------ the kinds

    @classmethod
    def linear(cls, kind: Linear) -> Result:
        """The map itself, on the mean and on every draw."""
        mean = kind.affine(*(x.loc for x in kind.inputs))
        with torch.no_grad():
            return mean, cls(across(kind.affine, *(x.cov.values for x in kind.inputs)))

    @classmethod
    def select(cls, kind: Select) -> Any:
        """The same rearrangement of the mean and of every draw."""
        (x,) = kind.inputs
        mean, values = kind.apply(x.loc), across(kind.apply, x.cov.values)
        if isinstance(mean, Tensor):
            return mean, cls(values)
        return tuple((m, cls(v)) for m, v in zip(mean, values, strict=True))

    @classmethod
    def elementwise(cls, kind: Elementwise) -> Result:
        """The function on every draw; its derivative, averaged over the draws, is the gain."""
        (x,) = kind.inputs
        function = kind.function
        assert function is not None  # dispatch attaches it, see needs_functions
        if kind.kinks:
            mean, gain, values = _through_kinks(kind, function, x)
            return with_gain(x.loc.expand(mean.shape), mean, gain), cls(values)
        with torch.no_grad():
            mean = function(x.loc)
        shape = mean.shape  # a bound of a clamp can have more elements than what it clamps
        values, slopes = _with_slopes(
            lambda draws: across(function, draws), expanded(x.cov.values, shape)
        )
        return with_gain(x.loc.expand(shape), mean, slopes.mean(0)), cls(values)

    @classmethod
    def bilinear(cls, kind: Bilinear) -> Result:
        """The product of every pair of draws; its derivatives are the operands' averages."""
        x, y = kind.inputs
        with torch.no_grad():
            p, q = x.cov.values, y.cov.values
            values, left, right = across(kind.affine, p, q), p.mean(0), q.mean(0)
            offset = kind.affine(left, right) - kind.product(left, right)
        mean = kind.product(x.loc, right) + kind.product(left, y.loc) - kind.product(left, right)
        return mean + offset, cls(values)

    @classmethod
    def joint(cls, kind: Joint) -> Result:
        """By way of other operations if there is one, which have cheap derivatives; else as it is."""
        if (result := composed(kind)) is not None:
            return result
        return cls.anything(kind.inputs, kind.function)

    @classmethod
    def larger(cls, kind: Larger) -> Result:
        """The larger of every pair of draws; the derivative by an operand is how often it wins."""
        a, b = kind.inputs
        with torch.no_grad():
            p, q = a.cov.values, b.cov.values
            won = _share_above(p, q)
            mean = torch.maximum(a.loc, b.loc)
        return with_gains(mean, (a.loc, won), (b.loc, 1 - won)), cls(torch.maximum(p, q))

    @classmethod
    def noise(cls, kind: Noise) -> Result:
        """Every draw gets a mask of its own: 0 or ``1/(1-p)``, which has variance ``p/(1-p)``."""
        (x,) = kind.inputs
        values = x.cov.values
        keep = 1 / (1 + kind.var)
        with own_draws():
            mask = torch.rand((len(values), *kind.shape), dtype=values.dtype, device=values.device)
        return x.loc, cls(values * (mask < keep) / keep)

    @classmethod
    def anything(cls, inputs: tuple[Random, ...], function: Callable[..., Any]) -> Any:
        """Any differentiable function of several tensors, whether there is a rule for it or not.

        Returns:
            Mean and draws; a tuple of them, and of what is None, if the function returns several.

        Raises:
            TypeError: if it returns anything but floating-point tensors.
        """
        stacks = [x.cov.values for x in inputs]
        with own_draws():  # every sample has random numbers of its own
            with torch.no_grad():
                means = function(*(x.loc for x in inputs))
            if not isinstance(means, tuple | list):
                return cls._one(inputs, stacks, function, means)
            return tuple(
                None if mean is None else cls._one(inputs, stacks, _Part(function, i), mean)
                for i, mean in enumerate(means)
            )

    @classmethod
    def _one(
        cls, inputs: tuple[Random, ...], stacks: list[Tensor], function: Any, mean: Any
    ) -> Result:
        if not isinstance(mean, Tensor) or not mean.is_floating_point():
            raise TypeError("its result is not a floating-point tensor")
        with torch.no_grad():
            values = across(function, *stacks)
        return _Averaged.apply(function, stacks, mean, *(x.loc for x in inputs)), cls(values)


def _with_slopes(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """A function of every element, and its derivative."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        values = function(x)
        one = values.new_ones(()).expand_as(values)
        (slopes,) = torch.autograd.grad(values, x, one)
    return values.detach(), slopes


def _through_kinks(
    kind: Elementwise, function: Callable[[Tensor], Tensor], x: Random
) -> tuple[Tensor, Tensor, Tensor]:
    """A piecewise linear function: to count the draws beyond each kink is all that its gain takes.

    Returns:
        Its value at the mean, its slope averaged over the draws, and the draws.
    """
    with torch.no_grad():
        loc, draws = x.loc, x.cov.values
        values = across(function, draws)
        shape = values.shape[1:]  # a bound of a clamp can have more elements than what it clamps
        if loc.shape != shape:
            loc, draws = loc.expand(shape), expanded(draws, shape)
        mean, point = function(loc), loc
        like: Any = {"dtype": loc.dtype, "device": loc.device}
        kinks = [(torch.as_tensor(place, **like).expand(shape), jump) for place, jump in kind.kinks]
        for (
            places,
            _,
        ) in (
            kinks
        ):  # at a kink torch has the slope of either side, or none; on its left it is known
            point = torch.where(loc == places, _just_below(loc), point)
        _, gain = _with_slopes(function, point)
        for places, jump in kinks:
            share = _share_above(draws, places.expand_as(draws))
            gain = gain + (share - (point > places).to(loc.dtype)) * jump
    return mean, gain.to(mean.dtype), values


def _just_below(x: Tensor) -> Tensor:
    """The next smaller numbers, or nearly."""
    limits = torch.finfo(x.dtype)
    return x - (2 * limits.eps * x.abs()).clamp_min(limits.tiny)


def _share_above(p: Tensor, q: Tensor) -> Tensor:
    """The share of draws with ``p > q``."""
    working = torch.promote_types(p.dtype, torch.float32)  # bfloat16 counts to 256
    total, above = (torch.zeros_like(p[0], dtype=working) for _ in range(2))
    for one, other in zip(p, q, strict=True):
        total += torch.gt(one, other, out=above)
    return (total / len(p)).to(p.dtype)


def _variances(values: Tensor) -> Tensor:
    """``Var`` over the first dimension, by deviations from the first draw; torch's own is slow over few."""
    working = torch.promote_types(values.dtype, torch.float32)
    first, *others = values.to(working)
    total, squares = torch.zeros_like(first), torch.zeros_like(first)
    for draw in others:
        apart = torch.where(draw == first, 0, draw - first)  # of equal infinities, too
        total += apart
        squares.addcmul_(apart, apart)
    var = (squares - total.square() / len(values)).clamp_min(0) / (len(values) - 1)
    return var.to(values.dtype)


class _Part:
    """One of several results of a function."""

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.function = function
        self.number = number

    def __call__(self, *tensors: Tensor) -> Tensor:
        part: Tensor = self.function(*tensors)[self.number]
        return part


class _Averaged(torch.autograd.Function):
    """A value whose derivative is the average over draws of a function's derivatives there."""

    @staticmethod
    def forward(
        ctx: Any, function: Any, stacks: list[Tensor], mean: Tensor, *inputs: Tensor
    ) -> Tensor:
        ctx.function, ctx.stacks = function, stacks
        return mean.view_as(mean)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        with own_draws():
            return None, None, None, *_average(ctx.function, ctx.stacks, grad)


def _average(function: Callable[..., Tensor], stacks: list[Tensor], grad: Tensor) -> list[Tensor]:
    """The mean over draws of ``grad · ∂function/∂draw``."""
    totals = [torch.zeros_like(stack[0]) for stack in stacks]
    for draws in zip(*stacks, strict=True):
        with torch.enable_grad():
            leaves = [draw.detach().requires_grad_() for draw in draws]
            value = function(*leaves)
        if not value.requires_grad:
            continue  # it has no derivative: all of it is left to the samples
        found = torch.autograd.grad(
            value, leaves, grad, allow_unused=True, create_graph=grad.requires_grad
        )
        totals = [t if g is None else t + g for t, g in zip(totals, found, strict=True)]
    return [total / len(stacks[0]) for total in totals]
