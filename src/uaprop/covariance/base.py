"""What a representation of a covariance has to know: how it passes through each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Bilinear, Elementwise, Joint, Kind, Larger, Linear, Noise, Random, Select

__all__ = ["Covariance", "Result", "composed", "per_batch_element", "rearranged"]

Result = tuple[Tensor, "Covariance"]


class Covariance(ABC):
    """The covariance of one random tensor.

    The class methods take a kind, whose operands all carry this representation, and answer with the
    mean and the covariance of its output; ``select`` with whatever structure the selection has.
    """

    __slots__ = ()

    needs_functions: ClassVar[bool] = False
    """Whether it takes plain functions, and so operations that have no rule (``anything``)."""

    defers: ClassVar[bool] = True
    """Whether an increasing function may wait, lest a maximum follow (``Elementwise.increasing``)."""

    uncorrelated: ClassVar[bool] = False
    """Whether it takes all elements to be independent of each other."""

    @classmethod
    def anything(cls, inputs: tuple[Random, ...], function: Callable[..., Any]) -> Any:
        """Pass through a plain function; only where ``needs_functions``."""
        raise NotImplementedError

    @classmethod
    def linearised(cls, inputs: tuple[Random, ...], function: Callable[..., Any]) -> Any:
        """Pass through a plain function by its derivative at the mean.

        Mean and covariance, or a tuple of them and of what is None if the function returns several.

        Raises:
            UnsupportedOperation: if this representation cannot.
        """
        raise UnsupportedOperation(
            "an operation without a rule",
            reason=f"a {cls.__name__.lower()} covariance cannot pass through its derivative",
            remedy='Use unsupported="linearise" with method="sketch" or "adjoint".',
        )

    @property
    @abstractmethod
    def var(self) -> Tensor:
        """Marginal variances, of the tensor's shape."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Dense covariance of each batch element, see :func:`per_batch_element`."""

    @abstractmethod
    def deviations(self, count: int, generator: torch.Generator | None) -> Tensor:
        """``count`` draws with mean zero and this covariance, ``(count, *shape)``."""

    def times(self, jacobian: Tensor) -> Tensor:
        """``J Σ`` for the Jacobian ``J`` of each batch element, ``(batch, outputs, elements)``.

        With a batch of one the tensor counts as one batch element, whatever its shape.

        Returns:
            ``(batch, outputs, elements)``.
        """
        dense = self.dense()
        if len(jacobian) == 1 and dense.ndim == 3:
            dense = torch.block_diag(*dense)
        return jacobian @ dense

    @classmethod
    @abstractmethod
    def linear(cls, kind: Linear) -> Result:
        """Pass through an affine map."""

    @classmethod
    @abstractmethod
    def select(cls, kind: Select) -> Any:
        """Pass through a rearrangement, possibly with several outputs."""

    @classmethod
    @abstractmethod
    def elementwise(cls, kind: Elementwise) -> Result:
        """Pass through a scalar function."""

    @classmethod
    @abstractmethod
    def bilinear(cls, kind: Bilinear) -> Result:
        """Pass through a product of two random operands."""

    @classmethod
    @abstractmethod
    def joint(cls, kind: Joint) -> Result:
        """Pass through a map of whole vectors."""

    @classmethod
    def larger(cls, kind: Larger) -> Result:
        """Pass through the larger of two tensors: here by way of their difference, ReLU and a sum."""
        a: Any
        b: Any
        a, b = kind.inputs
        result = b + F.relu(a - b)
        return result.loc, result.cov

    @classmethod
    @abstractmethod
    def noise(cls, kind: Noise) -> Result:
        """Pass through an operation that adds noise."""

    @classmethod
    def through(cls, kind: Kind) -> Any:
        """Pass through whichever kind it is."""
        # not match, which builds a set and a list for a class pattern
        if isinstance(kind, Linear):
            return cls.linear(kind)
        if isinstance(kind, Elementwise):
            return cls.elementwise(kind)
        if isinstance(kind, Select):
            return cls.select(kind)
        if isinstance(kind, Bilinear):
            return cls.bilinear(kind)
        if isinstance(kind, Joint):
            return cls.joint(kind)
        if isinstance(kind, Larger):
            return cls.larger(kind)
        return cls.noise(kind)


def composed(kind: Joint) -> Result | None:
    """A map of whole vectors by way of other operations, if there is one."""
    if kind.composed is None:
        return None
    result = kind.composed(kind.inputs[0])
    return result.loc, result.cov


def per_batch_element(tensor: Tensor) -> Tensor:
    """Flatten to ``(batch, elements)``; a tensor of fewer than two dimensions is one batch element.

    The first dimension is the batch, as everywhere in torch: a dense covariance is then
    ``(batch, elements, elements)``, and ``(elements, elements)`` for a vector.

    Returns:
        ``(batch, elements)``, or ``(elements,)``.
    """
    return tensor.flatten(1) if tensor.ndim > 1 else tensor.reshape(-1)


def rearranged(kind: Select, wrap: Callable[[Tensor], Covariance]) -> Any:
    """Rearrange mean and marginal variances alike, with ``wrap`` around the variances."""
    (x,) = kind.inputs
    var = x.cov.var
    if var.stride() != x.loc.stride():  # so that whatever view the mean allows, the variance does
        var = torch.zeros_like(x.loc).add(var)
    mean, var = kind.apply(x.loc), kind.apply(var)
    if isinstance(mean, Tensor):
        return mean, wrap(var)
    return tuple((m, wrap(v)) for m, v in zip(mean, var, strict=True))
