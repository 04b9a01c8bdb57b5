"""The seven kinds of map that an operation can be.

A *rule* answers an operation with one of these; a *covariance* knows how to pass through each. Rules and
covariances never meet otherwise, so the library's size is their sum, not their product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from .numerics.moments import Moments

__all__ = [
    "Bilinear",
    "Elementwise",
    "Joint",
    "Kind",
    "Larger",
    "Linear",
    "Noise",
    "Random",
    "Rows",
    "Select",
    "plain",
]


class Random:
    """A random tensor as rules and covariances see it: a mean and a covariance.

    Not an abstract base class: ``isinstance`` is asked several times for every operation, and would take
    four times as long.
    """

    __slots__ = ()

    @property
    def loc(self) -> Tensor:
        """The mean, as a plain tensor."""
        raise NotImplementedError

    @property
    def cov(self) -> Any:
        """The covariance's representation; ``cov.var`` are the marginal variances."""
        raise NotImplementedError

    @property
    def origin(self) -> tuple[Random, Callable[[Tensor], Tensor]] | None:
        """Where a tensor with repeated elements came from, and how; None for any other."""
        return None

    @property
    def monotone_of(self) -> tuple[Random, Callable[[Random], Random]] | None:
        """What this is an increasing function of, and the function; see ``Elementwise.monotone``."""
        return None

    @property
    def shape(self) -> torch.Size:
        """The shape."""
        return self.loc.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.loc.ndim


def plain(value: Any) -> Any:
    """The mean of a random tensor; anything else as it is."""
    return value.loc if isinstance(value, Random) else value


class Rows(Protocol):
    """A linear map whose every channel has a row of coefficients, and so takes a factor at no cost."""

    def rescaled(self, var: Tensor, factor: Tensor | None) -> Tensor:
        """``Linear.squared`` of variances, and then each channel multiplied by a number ``(channels,)``."""

    def normed(
        self, mean: Tensor, var: Tensor, factor: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance, if each channel is then multiplied by one number and another added."""


@dataclass(slots=True, eq=False)
class Linear:
    """``y = A(x₁, x₂, …) + b``.

    Attributes:
        inputs: the random operands.
        affine: the whole map, on their means.
        linear: its linear part ``A``, on anything that adds up (probes, gradients).
        squared: ``A`` with every coefficient squared, on variances of independent elements.
        monotone: whether every output element increases with its own input element and depends on no
            other, and in the same way all over a channel.
        scaling: of a map that multiplies each channel by a number and adds one, these, ``(channels,)`` each.
        rows: of a map with coefficients of its own for each channel, what gives the map with others instead.
        joins: whether every output element is one element of an operand, or a constant, as of ``torch.cat``.
    """

    inputs: tuple[Random, ...]
    affine: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    squared: Callable[..., Tensor]
    monotone: bool = False
    scaling: Callable[[], tuple[Tensor, Tensor]] | None = None
    rows: Callable[[], Rows] | None = None
    joins: bool = False


@dataclass(slots=True, eq=False)
class Select:
    """A rearrangement: every output element is one input element.

    ``apply`` acts on means, variances and probes alike, and may return several tensors. With ``repeats``
    an element may appear more than once, and the result remembers its origin; with ``converts`` all
    elements stay where they are and only dtype, device or memory change.
    """

    inputs: tuple[Random]
    apply: Callable[[Tensor], Any]
    repeats: bool = False
    converts: bool = False


@dataclass(slots=True, eq=False)
class Elementwise:
    """``y_i = f(x_i)``.

    Attributes:
        inputs: the random operand.
        moments: the moments of ``f`` from the marginal mean and variance.
        function: ``f`` itself on plain tensors; the dispatcher fills it in for covariances that
            ask for it.
        kinks: of a piecewise linear ``f`` the places where its slope jumps, and by how much: numbers,
            or tensors that broadcast to the output.
        monotone: whether ``f`` never decreases, and is the same all over a channel. Then
            ``max f(x) = f(max x)``, and a maximum is better taken first: of what is nearly Gaussian.
    """

    inputs: tuple[Random]
    moments: Callable[[Tensor, Tensor], Moments]
    function: Callable[[Tensor], Tensor] | None = None
    kinks: tuple[tuple[float | Tensor, float | Tensor], ...] = ()
    monotone: bool = False


@dataclass(slots=True, eq=False)
class Bilinear:
    """``y = B(x₁, x₂) + b`` with coefficients 0 and 1, each sum over matching elements only.

    Attributes:
        inputs: the two random operands.
        affine: the whole map, on their means.
        product: its bilinear part ``B``.
    """

    inputs: tuple[Random, Random]
    affine: Callable[[Tensor, Tensor], Tensor]
    product: Callable[[Tensor, Tensor], Tensor]


@dataclass(slots=True, eq=False)
class Joint:
    """A map of whole vectors, with a moment formula of its own.

    Attributes:
        inputs: the random operand.
        function: the plain map, for linearisation.
        moments: mean and variance of the output from those of independent inputs.
        composed: the same map by way of other operations on random tensors, for covariances that carry
            correlation: ``max(a, b) = b + relu(a - b)``. Without it they linearise ``function``.
    """

    inputs: tuple[Random]
    function: Callable[[Tensor], Tensor]
    moments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    composed: Callable[[Any], Any] | None = None


@dataclass(slots=True, eq=False)
class Larger:
    """``y_i = max(a_i, b_i)``, of two random operands of one shape and dtype."""

    inputs: tuple[Random, Random]


@dataclass(slots=True, eq=False)
class Noise:
    """``y = x · ξ`` with noise ``ξ`` that the operation adds itself.

    ``ξ`` has mean 1 and variance ``var``, is independent of everything else, and has one value per
    element of ``shape``, which broadcasts to the input's.
    """

    inputs: tuple[Random]
    var: float
    shape: tuple[int, ...]


Kind: TypeAlias = Linear | Select | Elementwise | Bilinear | Joint | Larger | Noise
