"""The covariance of an answer: a result, not something to compute on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Bilinear, Elementwise, Joint, Linear, Noise, Select
from .base import Covariance, rearranged

__all__ = ["Finished"]


class Finished(Covariance):
    """Variances and, where it was small enough to keep, the dense covariance of each batch element.

    The latter may be given as a function, which is called when somebody asks for it, and once.

    Operations refuse it: how the answer depends on what came before is gone, so correlation would be
    lost unnoticed. Rearrangements keep the marginals.
    """

    __slots__ = ("_dense", "_var")

    defers = False  # what is refused is refused at once

    def __init__(self, var: Tensor, dense: Tensor | Callable[[], Tensor] | None = None) -> None:
        self._var = var
        self._dense = dense

    @property
    def var(self) -> Tensor:
        """Marginal variances."""
        return self._var

    @property
    def kept(self) -> Tensor | None:
        """The dense covariance if it was kept."""
        if self._dense is not None and not isinstance(self._dense, Tensor):
            self._dense = self._dense()
        return self._dense

    def dense(self) -> Tensor:
        """The covariance of each batch element.

        Returns:
            ``(batch, n, n)``, or ``(n, n)`` for a vector.

        Raises:
            ValueError: if it was too large to keep, or the answer was cut up afterwards.
        """
        dense = self.kept
        if dense is None:
            raise ValueError(
                "the dense covariance was not kept: the answer is too large, or it was "
                "rearranged afterwards; the marginal variances are in .var"
            )
        return dense

    def deviations(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Normal draws with the dense covariance."""
        values, vectors = torch.linalg.eigh(self.dense())
        root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
        noise = torch.randn(
            (count, *root.shape[:-1]), dtype=root.dtype, device=root.device, generator=generator
        )
        return (root @ noise.unsqueeze(-1)).squeeze(-1).reshape(count, *self._var.shape)

    @classmethod
    def select(cls, kind: Select) -> Any:
        """The same rearrangement of the marginals; a conversion keeps the dense covariance too."""
        dense = kind.inputs[0].cov.kept if kind.converts else None
        converted = None if dense is None else kind.apply(dense)
        return rearranged(kind, lambda var: cls(var, converted))

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise UnsupportedOperation(
            "an operation on the answer of a method",
            reason="what its elements have in common with each other and with the input is gone",
            remedy="Put the operation into the model that is propagated, or continue from independent "
            "elements with ua.Gaussian(y.mean, y.var).",
        )

    @classmethod
    def linear(cls, kind: Linear) -> NoReturn:
        """Refused."""
        cls._refuse()

    @classmethod
    def elementwise(cls, kind: Elementwise) -> NoReturn:
        """Refused."""
        cls._refuse()

    @classmethod
    def bilinear(cls, kind: Bilinear) -> NoReturn:
        """Refused."""
        cls._refuse()

    @classmethod
    def joint(cls, kind: Joint) -> NoReturn:
        """Refused."""
        cls._refuse()

    @classmethod
    def noise(cls, kind: Noise) -> NoReturn:
        """Refused."""
        cls._refuse()
