"""Independent elements whose variances are corrected on the way, by factors fitted beforehand.

The diagonal covariance loses variance where correlated elements add up, and loses it in much the
same proportion whatever the input. So every variance that an operation is about to use is
multiplied by one factor for each channel at that place. Places are counted in the order in which the pass
comes to them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from ..kinds import Bilinear, Elementwise, Joint, Kind, Larger, Linear, Noise, Random, Select
from .base import Covariance, Result
from .diagonal import Diagonal
from .ensemble import Ensemble
from .postponed import Postponed, passed

__all__ = ["OUTPUT", "Calibrated", "Fitting", "Tally", "channelwise"]

OUTPUT = "Output"
"""The kind of the last places of a pass: not an operation, but the model's outputs."""


class Tally(Protocol):
    """Counts the places of a pass and corrects the variances there."""

    def corrected(self, place: str, x: Random) -> Tensor:
        """The variances of ``x`` at the next place, which is of the kind ``place``."""
        ...


class _Given(Random):
    """A mean and a covariance, as an operand."""

    __slots__ = ("_cov", "_loc")

    def __init__(self, loc: Tensor, cov: Covariance) -> None:
        self._loc = loc
        self._cov = cov

    @property
    def loc(self) -> Tensor:
        """The mean."""
        return self._loc

    @property
    def cov(self) -> Covariance:
        """The covariance."""
        return self._cov


def channelwise(factors: Tensor, like: Tensor) -> Tensor:
    """Factors ``(channels,)`` in a shape that broadcasts with ``(batch, channels, …)``."""
    return factors.view(-1, *[1] * (like.ndim - 2)) if like.ndim > 1 else factors


class Calibrated(Diagonal):
    """A variance for each element, and the tally of the pass it belongs to."""

    __slots__ = ("tally",)

    maximum_first = False  # sites are counted in the model's order

    def __init__(self, var: Tensor | Postponed, tally: Tally) -> None:
        super().__init__(var)
        self.tally = tally

    @classmethod
    def linear(cls, kind: Linear) -> Result:
        """As for independent elements."""
        mean, var = passed(kind)
        return mean, cls(var, kind.inputs[0].cov.tally)

    @classmethod
    def select(cls, kind: Select) -> Any:
        """As for independent elements."""
        tally = kind.inputs[0].cov.tally
        result = Diagonal.select(kind)
        if isinstance(result[0], Tensor):
            return result[0], cls(result[1].var, tally)
        return tuple((mean, cls(cov.var, tally)) for mean, cov in result)

    @classmethod
    def elementwise(cls, kind: Elementwise) -> Result:
        """The moments at the corrected variance."""
        return cls._at_a_place(kind)

    @classmethod
    def bilinear(cls, kind: Bilinear) -> Result:
        """The product of operands with corrected variances."""
        return cls._at_a_place(kind)

    @classmethod
    def joint(cls, kind: Joint) -> Result:
        """The map's own formula at the corrected variances."""
        return cls._at_a_place(kind)

    @classmethod
    def larger(cls, kind: Larger) -> Result:
        """The larger of two with corrected variances."""
        return cls._at_a_place(kind)

    @classmethod
    def noise(cls, kind: Noise) -> Result:
        """As for independent elements, with the corrected variance."""
        return cls._at_a_place(kind)

    @classmethod
    def _at_a_place(cls, kind: Kind) -> Result:
        tally = kind.inputs[0].cov.tally
        place = type(kind).__name__
        operands = {id(x): _Given(x.loc, Diagonal(tally.corrected(place, x))) for x in kind.inputs}
        inputs: Any = tuple(operands[id(x)] for x in kind.inputs)
        mean, cov = Diagonal.through(replace(kind, inputs=inputs))
        return mean, cls(cov.var, tally)


class Fitting(Calibrated):
    """The same with real draws beside it, from which its tally learns the true variances."""

    __slots__ = ("draws",)

    needs_functions = True

    def __init__(self, var: Tensor, tally: Tally, draws: Tensor) -> None:
        super().__init__(var, tally)
        self.draws = draws

    @classmethod
    def through(cls, kind: Kind) -> Any:
        """The calibrated variance and the draws, each in its own way."""
        inputs: Any = tuple(_Given(x.loc, Ensemble(x.cov.draws)) for x in kind.inputs)
        known = Calibrated.through(kind)
        plain: Any = {"composed": None} if isinstance(kind, Joint) else {}
        drawn = Ensemble.through(replace(kind, inputs=inputs, **plain))
        if isinstance(known[0], Tensor):
            return known[0], cls(known[1].var, known[1].tally, drawn[1].values)
        return tuple(
            (mean, cls(cov.var, cov.tally, other.values))
            for (mean, cov), (_, other) in zip(known, drawn, strict=True)
        )
