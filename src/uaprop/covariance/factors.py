"""Factors over noise sources that the whole pass shares.

Every tensor of a pass has factors ``F`` (sources × its shape), and for any two of them
``Cov(a, b) = F_aᵀ F_b``: so ``x + x`` has variance ``4v`` and ``x - x`` has none, and skip connections,
concatenations and re-used tensors keep their correlation. Linear maps act on each source's factor.

A nonlinearity multiplies the factors by its gain (Stein) and adds the rest of its variance,
``var - gain² v``, as the product of the factors of two sources. The product of two independent signs is a
third, so this has covariance ``Σ∘Σ``, the second term of the Hermite (Mehler) expansion of
``Cov(f(x_i), f(x_j))``, at the price of a multiplication; it is scaled to each element's right
variance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..kinds import Bilinear, Elementwise, Joint, Larger, Linear, Noise, Random, Select
from ..numerics.chance import RandomNumbers
from ..numerics.moments import root, untracked
from ..numerics.stacked import sum_of_squares
from .base import Covariance, Result, composed, per_batch_element, square_root
from .derivative import along, floating
from .response import with_gain, with_gains
from .second_order import (
    larger_in_loops,
    partners,
    second_order,
    through,
    through_in_loops,
)
from .sources import Sources, coded, decoded, signed, signed_by_position
from .stacked import across

__all__ = ["Factors"]


class Factors(Covariance):
    """``Fᵀ F`` with factors ``F`` over shared sources.

    Args:
        values: the factors, ``(sources, *shape)``.
        sources: the sets of sources they belong to, in order.
    """

    __slots__ = ("_choices", "_own", "_var", "sources", "values")

    def __init__(self, values: Tensor, sources: tuple[Sources, ...]) -> None:
        self.values = values
        self.sources = sources
        self._var: Tensor | None = None
        self._choices: list[Tensor] | None = None
        self._own: tuple[Tensor, Tensor] | None = None  # factors to sample from, and their norms

    @classmethod
    def signs(cls, var: Tensor, sources: Sources) -> Factors:
        """Independent elements, each with a random sign at every source."""
        values = signed_by_position(root(var), sources.count, sources.noise)
        return cls(values, (sources,))

    @classmethod
    def codes(cls, factors: Tensor, sources: Sources) -> Factors:
        """Given factors, spread over the sources; exactly if there are twice as many sources."""
        return cls(coded(factors, sources), (sources,))

    @classmethod
    def dense_signs(cls, dense: Tensor, shape: torch.Size, sources: Sources) -> Factors:
        """A dense covariance of each batch element, by a square root of it times random signs."""
        unit = signed(dense.new_ones(dense.shape[:-1]), sources.count, sources.noise)
        values = torch.einsum("...ij,r...j->r...i", square_root(dense), unit)
        return cls(values.reshape(-1, *shape), (sources,))

    def tensors(self) -> tuple[Tensor, ...]:
        """The factors."""
        return (self.values,)

    @property
    def responds(self) -> bool:
        """Whether the pass is linearised."""
        return _linearised(self.sources)

    @property
    def var(self) -> Tensor:
        """Marginal variances, ``Σ_r F_r²``."""
        if self._var is None:
            self._var = sum_of_squares(self.values)
        return self._var

    @contextlib.contextmanager
    def own_choices(self) -> Iterator[None]:
        """The same random choices each time: what is computed twice from this is the same twice."""
        generators = [part.generator for part in self.sources]
        now = [generator.get_state() for generator in generators]
        if self._choices is None:
            self._choices = now
            yield
            return
        for generator, state in zip(generators, self._choices, strict=True):
            generator.set_state(state)
        yield
        for generator, state in zip(generators, now, strict=True):
            generator.set_state(state)

    def dense(self) -> Tensor:
        """``Fᵀ F`` for each batch element."""
        flat = across(per_batch_element, self.values)
        return torch.einsum("r...i,r...j->...ij", flat, flat)

    def deviations(self, count: int, noise: RandomNumbers) -> Tensor:
        """Normal sources times their factors; the items of a batch share the sources.

        Factors that were given have a source each, however many those of the pass are.

        Returns:
            ``(count, *shape)``.
        """
        if self._own is None:
            own = decoded(self.values, self.sources[0]) if len(self.sources) == 1 else self.values
            self._own = own, torch.linalg.vector_norm(own.flatten(1), dim=1)
        values, scale = self._own
        return torch.tensordot(noise.shared.normal(count, scale), values, 1)

    def times(self, jacobian: Tensor) -> Tensor:
        """``(J Fᵀ) F``, without forming the covariance."""
        count, elements = len(self.values), jacobian.shape[-1]
        factors = (
            self.values.to(jacobian.dtype).reshape(count, len(jacobian), elements).transpose(0, 1)
        )
        return (jacobian @ factors.mT) @ factors

    # ------------------------------------------------------------ the kinds

    @classmethod
    def linear(cls, kind: Linear) -> Result:
        """The linear part acts on each source's factor."""
        mean = kind.affine(*(x.loc for x in kind.inputs))
        sources, stacks = _aligned(kind.inputs)
        with _tracking(sources):
            return mean, cls(across(kind.linear, *stacks), sources)

    @classmethod
    def select(cls, kind: Select) -> Any:
        """The same rearrangement of the mean and of every factor."""
        (x,) = kind.inputs
        sources = x.cov.sources
        mean, values = kind.apply(x.loc), across(kind.apply, x.cov.values)
        if isinstance(mean, Tensor):
            return mean, cls(values, sources)
        return tuple((m, cls(v, sources)) for m, v in zip(mean, values, strict=True))

    @classmethod
    def elementwise(cls, kind: Elementwise) -> Result:
        """Gain times factors, and the rest of the variance as a product of two sources' factors."""
        (x,) = kind.inputs
        loc, values, sources = x.loc, x.cov.values, x.cov.sources
        with _tracking(sources), x.cov.own_choices():
            if len(sources) == 1 and untracked(loc, values):
                moments, factors, lost = through_in_loops(kind, loc, values, sources[0])
            else:
                moments, factors, lost = through(kind, loc, x.cov.var, values, sources)
            if bool(lost.any()):  # factors cancel or underflow: fresh signs
                spread = root(lost)
                factors = factors + signed(spread, len(values), RandomNumbers(sources[0].fresh))
                total = sum_of_squares(factors)  # the signs may agree with the factors by chance
                off = (spread > 0) & (total > 0)
                factors = factors * torch.where(off, root(moments.var / total), 1)
            if moments.mean.shape != x.shape:  # a bound of a clamp can have more elements
                loc = loc.expand(moments.mean.shape)
        mean = moments.mean
        if _linearised(sources):
            mean = with_gain(loc, moments.mean, moments.gain)
        return mean, cls(factors, sources)

    @classmethod
    def bilinear(cls, kind: Bilinear) -> Result:
        """First order by the product rule, second order as products of two sources' factors.

        ``E[xy] = m_x m_y + Cov(x, y)``, and the second-order term ``x̃ ỹ - Cov(x, y)`` has the variance
        ``v_x v_y + Cov(x, y)²`` of the symmetrised product of independent sources.

        Returns:
            Mean and factors.
        """
        x, y = kind.inputs
        sources, (p, q) = _aligned(kind.inputs)
        with _tracking(sources):
            shared = across(kind.product, p, q).sum(0)
            first = across(lambda a: kind.product(a, y.loc), p)
            first = first + across(lambda b: kind.product(x.loc, b), q)
            values = first + second_order(kind.product, p, q, sources)
        return kind.affine(x.loc, y.loc) + shared, cls(values, sources)

    @classmethod
    def joint(cls, kind: Joint) -> Result:
        """By way of other operations if there is one, else linearised at the mean."""
        (x,) = kind.inputs
        if (result := composed(kind)) is not None:
            return result
        sources = x.cov.sources
        with _tracking(sources):
            (values,) = along(kind.function, (x.loc,), [x.cov.values])
        return kind.function(x.loc), cls(values, sources)

    @classmethod
    def larger(cls, kind: Larger) -> Result:
        """``b + relu(a - b)``, without the difference's factors in memory where no derivative needs them."""
        a, b = kind.inputs
        sources = a.cov.sources
        if len(sources) > 1 or b.cov.sources != sources:
            return super().larger(kind)
        p, q = a.cov.values, b.cov.values
        with _tracking(sources):
            if not untracked(a.loc, b.loc, p, q) or a.loc.numel() == 0:
                return super().larger(kind)
            found = larger_in_loops((a.loc, p), (b.loc, q), sources[0])
        if found is None:
            return super().larger(kind)
        mean, gain, factors = found
        if _linearised(sources):
            mean = with_gains(mean, (a.loc, gain), (b.loc, 1 - gain))
        return mean, cls(factors, sources)

    @classmethod
    def linearised(cls, inputs: tuple[Random, ...], function: Callable[..., Any]) -> Any:
        """Each source's factor along the derivative at the mean."""
        sources, stacks = _aligned(inputs)
        at = tuple(x.loc for x in inputs)
        value = function(*at)
        means = floating(value)
        with _tracking(sources):
            slopes = iter(along(function, at, stacks))
        found = [None if m is None else (m, cls(next(slopes), sources)) for m in means]
        return tuple(found) if isinstance(value, tuple | list) else found[0]

    @classmethod
    def noise(cls, kind: Noise) -> Result:
        """``x ξ = x + x (ξ - 1)``: the second term gets fresh signs, one for each value of the mask."""
        (x,) = kind.inputs
        values, sources = x.cov.values, x.cov.sources
        count = len(values)
        with _tracking(sources):
            spread = x.loc.new_full(kind.shape, (kind.var * count) ** 0.5)
            mask = signed(spread, count, RandomNumbers(sources[0].fresh))
            draws = x.loc * count**-0.5 + values[partners(sources)]
            return x.loc, cls(values + mask * draws, sources)


def _linearised(sources: tuple[Sources, ...]) -> bool:
    return any(part.linearised for part in sources)


def _tracking(sources: tuple[Sources, ...]) -> Any:
    """No derivatives but the mean's, in a linearised pass."""
    return torch.no_grad() if _linearised(sources) else contextlib.nullcontext()


def _aligned(inputs: tuple[Random, ...]) -> tuple[tuple[Sources, ...], list[Tensor]]:
    """The operands' factors over the union of their sources, zero where a source is not theirs."""
    union = inputs[0].cov.sources
    if all(x.cov.sources == union for x in inputs[1:]):
        return union, [x.cov.values for x in inputs]
    union = tuple(dict.fromkeys(part for x in inputs for part in x.cov.sources))
    stacks = []
    for x in inputs:
        parts = dict(
            zip(x.cov.sources, x.cov.values.split([s.count for s in x.cov.sources]), strict=True)
        )
        absent = x.cov.values.new_zeros(x.shape)
        stacks.append(
            torch.cat([parts[s] if s in parts else absent.expand(s.count, *x.shape) for s in union])
        )
    return union, stacks
