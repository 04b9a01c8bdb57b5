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
from ..numerics.chance import RandomNumbers
from ..numerics.moments import root
from ..numerics.underflow import smallest_lost

__all__ = ["Covariance", "Result", "composed", "per_batch_element", "rearranged", "square_root"]

Result = tuple[Tensor, "Covariance"]


class Covariance(ABC):
    """The covariance of one random tensor.

    The class methods take a kind, whose operands all carry this representation, and answer with the
    mean and the covariance of its output; ``select`` with whatever structure the selection has.
    """

    __slots__ = ()

    needs_functions: ClassVar[bool] = False
    """Whether it takes plain functions, and so operations that have no rule (``anything``)."""

    maximum_first: ClassVar[bool] = True
    """Whether a maximum of an increasing function is taken before it (``Elementwise.monotone``)."""

    uncorrelated: ClassVar[bool] = False
    """Whether it takes all elements to be independent of each other."""

    @property
    def responds(self) -> bool:
        """Whether a method reads the response off the mean's derivative, which no ``detach`` may cut then."""
        return False

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

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it is made of."""
        return (self.var,)

    @abstractmethod
    def dense(self) -> Tensor:
        """Dense covariance of each batch element, see :func:`per_batch_element`."""

    @abstractmethod
    def deviations(self, count: int, noise: RandomNumbers) -> Tensor:
        """``count`` samples with mean zero and this covariance, ``(count, *shape)``.

        The numbers are asked for with what they will be multiplied with, which tells the sources' sizes.
        """

    def stored(self) -> Covariance:
        """What can be written to a file of it, as a representation that can."""
        return self

    def times(self, jacobian: Tensor) -> Tensor:
        """``J Σ`` for the Jacobian ``J`` of each batch element, ``(batch, outputs, elements)``.

        With a batch of one the tensor counts as one batch element, whatever its shape.

        Returns:
            ``(batch, outputs, elements)``.
        """
        dense = self.dense().to(jacobian.dtype)
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
            if kind.inputs[0].loc.numel() == 0:
                return cls.linear(_of_nothing(kind))
            return cls.joint(kind)
        if isinstance(kind, Larger):
            return cls.larger(kind)
        return cls.noise(kind)


def _of_nothing(kind: Joint) -> Linear:
    """A map of vectors without elements: a constant, as the norm of nothing is zero."""

    def zero(x: Tensor) -> Tensor:
        return torch.zeros_like(kind.function(x))

    return Linear(kind.inputs, kind.function, zero, zero)


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


def square_root(dense: Tensor) -> Tensor:
    """``R`` with ``R Rᵀ`` the covariance, ``(..., n, n)``; of matrices that are one and the same, once."""
    if dense.ndim == 3 and dense.stride(0) == 0 and len(dense) > 1:
        return square_root(dense[0]).expand(dense.shape)
    values, vectors = torch.linalg.eigh(dense)
    return vectors * root(values.clamp_min(0)).unsqueeze(-2)  # with finite gradients at zero


def rearranged(kind: Select, wrap: Callable[[Tensor], Any]) -> Any:
    """Rearrange mean and marginal variances alike, with ``wrap`` around the variances."""
    (x,) = kind.inputs
    var = x.cov.var
    if var.stride() != x.loc.stride():  # so that whatever view the mean allows, the variance does
        var = torch.zeros_like(x.loc).add(var)
    before = var
    mean, var = kind.apply(x.loc), kind.apply(var)
    if kind.converts and var.dtype != before.dtype:
        _check_kept(before, var)
    if isinstance(mean, Tensor):
        return mean, wrap(var)
    return tuple((m, wrap(v)) for m, v in zip(mean, var, strict=True))


def _check_kept(before: Tensor, after: Tensor) -> None:
    """Refuse a conversion in which variances become zero."""
    lost = smallest_lost(before, after)
    if lost is not None:
        raise UnsupportedOperation(
            f"a conversion to {after.dtype}",
            reason=f"a variance of {lost:.3g} would become zero, or be far off",
            remedy="Keep the Gaussian in float32, or convert to torch.bfloat16, which has smaller numbers.",
        )
