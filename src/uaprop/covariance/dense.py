"""A dense covariance that was given: correlated noise of any form."""

from __future__ import annotations

from typing import NoReturn

from ..errors import UnsupportedOperation
from .finished import Finished

__all__ = ["Dense"]


class Dense(Finished):
    """Variances and the dense covariance of each batch element, batch elements being independent.

    Methods convert it to what they carry. Operations outside of a method are refused, as those on results.
    """

    __slots__ = ()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise UnsupportedOperation(
            "an operation on a Gaussian with a dense covariance",
            reason="it has no representation that operations carry on their own",
            remedy='Put the operation into a model, and call ua.propagate(model, x); method="full" is exact '
            "for linear maps.",
        )
