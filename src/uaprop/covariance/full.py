"""The dense covariance of all elements of all tensors of a pass: for small networks, and as an oracle.

Every tensor is linear in random vectors that the whole pass shares (:mod:`~uaprop.covariance.terms`), so
sums, skip connections, concatenations and re-used tensors keep their correlation. Mean and covariance
are exact for linear maps and noise, and for products and piecewise linear functions of Gaussians; for
other scalar functions of Gaussians they have the first two dozen orders of the Hermite expansion. After a
nonlinearity tensors are not Gaussian any more, and are treated as if they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Bilinear, Elementwise, Joint, Linear, Noise, Random, Select
from ..numerics.bivariate import Residual
from ..numerics.chance import RandomNumbers
from .base import Covariance, Result, composed
from .derivative import floating
from .finished import Finished
from .quadratic import bilinear_matches, product_mean, taylor
from .residuals import Products, Scalar, residual_term
from .selection import chosen, numbered
from .stacked import across, expanded
from .terms import Maps, Term, between, check_size, variances

__all__ = ["Full"]

_DTYPES = (torch.float32, torch.float64)


class Full(Covariance):
    """Linear maps of shared random vectors, whose covariance is known.

    Args:
        maps: for each term that the tensor depends on its map, ``(len(term), *shape)``.
        like: a tensor of the shape, dtype and device; its values are not used.
    """

    __slots__ = ("_like", "_root", "_var", "maps")

    def __init__(self, maps: Maps, like: Tensor) -> None:
        if like.dtype not in _DTYPES:
            raise UnsupportedOperation(
                "",
                reason=f"a dense covariance is kept in float32 or float64, not in {like.dtype}",
                remedy="Convert the model and its input to float32.",
            )
        self.maps: Maps = {term: rows for term, rows in maps.items() if len(term)}
        self._like = like.detach()
        self._var: Tensor | None = None
        self._root: Tensor | None = None

    @classmethod
    def independent(cls, var: Tensor) -> Full:
        """Independent elements with the given variances, independent of everything else."""
        _check_input(var.dtype, var.numel())
        own = var.reshape(-1).clone()  # read again later, when it may have been modified in place
        return cls({Term(own): _identity(var)}, var)

    @classmethod
    def from_dense(cls, matrix: Tensor, shape: torch.Size | tuple[int, ...]) -> Full:
        """A given covariance of the elements of a tensor.

        Args:
            matrix: ``(n, n)`` over all ``n`` elements in their order; or one matrix for each element of
                the first dimension, ``(batch, n, n)``, which are then independent of each other.
            shape: the tensor's shape.

        Returns:
            A covariance, independent of everything else.

        Raises:
            TypeError: if it is neither float32 nor float64.
            ValueError: if it does not fit the shape, is too large, or is not a covariance.
        """
        shape = torch.Size(shape)
        count = shape.numel()
        _check_input(matrix.dtype, count)
        if matrix.ndim == 3 and len(shape) > 1 and len(matrix) == shape[0]:
            matrix = torch.block_diag(*matrix)
        if matrix.shape != (count, count):
            raise ValueError(
                f"a tensor of shape {tuple(shape)} has a covariance of shape {(count, count)}, "
                f"not {tuple(matrix.shape)}"
            )
        _check_covariance(matrix.detach())
        return cls({Term(matrix): _identity(matrix.new_empty(shape))}, matrix.new_empty(shape))

    # ------------------------------------------------------------ what it is

    @property
    def var(self) -> Tensor:
        """Marginal variances."""
        if self._var is None:
            self._var = variances(self.maps) if self.maps else torch.zeros_like(self._like)
        return self._var

    def tensors(self) -> tuple[Tensor, ...]:
        """The maps, and the variances of what they are maps of."""
        return (*self.maps.values(), *(term.own for term in self.maps))

    def matrix(self) -> Tensor:
        """The covariance of all elements, ``(n, n)``, across the batch too."""
        count = self._like.numel()
        check_size(count, count, f"the covariance of {count} elements")
        if not self.maps:
            return self._like.new_zeros((count, count))
        matrix = between(self.maps, self.maps)
        return (matrix + matrix.mT) / 2

    def dense(self) -> Tensor:
        """The covariance of each batch element."""
        shape = self._like.shape
        if len(shape) < 2:
            return self.matrix()
        batch, count = shape[0], shape[1:].numel()
        whole = self.matrix().view(batch, count, batch, count)
        return whole.diagonal(dim1=0, dim2=2).movedim(-1, 0)

    def stored(self) -> Finished:
        """The covariance of each batch element; what this has in common with other tensors is lost."""
        return Finished(self.var, self.dense())

    def times(self, jacobian: Tensor) -> Tensor:
        """``J Σ``, correlation across the batch included where the batch counts as one element."""
        matrix = self.matrix() if len(jacobian) == 1 else self.dense()
        return jacobian @ matrix.to(jacobian.dtype)

    def deviations(self, count: int, noise: RandomNumbers) -> Tensor:
        """Normal samples with this covariance, correlated across the batch as it is."""
        if self._root is None:
            values, vectors = torch.linalg.eigh(self.matrix())
            self._root = (vectors * values.clamp_min(0).sqrt()).mT
        root = self._root
        normal = noise.shared.normal(count, torch.linalg.vector_norm(root, dim=-1))
        return (normal @ root).view(count, *self._like.shape)

    # ------------------------------------------------------------ the kinds

    @classmethod
    def linear(cls, kind: Linear) -> Result:
        """The linear part acts on each row of the maps."""
        mean = kind.affine(*(x.loc for x in kind.inputs))
        return mean, cls(_mapped(kind.linear, kind.inputs, mean), mean)

    @classmethod
    def select(cls, kind: Select) -> Any:
        """The same choice of columns of the maps."""
        (x,) = kind.inputs
        mean = kind.apply(x.loc)
        maps: Maps = x.cov.maps
        if kind.converts:
            return mean, cls({t: across(kind.apply, rows) for t, rows in maps.items()}, mean)
        places = kind.apply(numbered(x.loc))
        if isinstance(mean, Tensor):
            return mean, cls(chosen(maps, places), mean)
        pairs = zip(mean, places, strict=True)
        return tuple((m, cls(chosen(maps, p), m)) for m, p in pairs)

    @classmethod
    def elementwise(cls, kind: Elementwise) -> Result:
        """Gain times maps (Stein), and the residual as a new term."""
        (x,) = kind.inputs
        moments = kind.moments(x.loc, x.cov.var)
        shape = moments.mean.shape
        operand: Maps = x.cov.maps
        if not operand:
            return moments.mean, cls({}, moments.mean)
        if shape != x.shape:  # a bound of a clamp can have more elements than what it clamps
            operand = {t: expanded(rows, shape) for t, rows in operand.items()}
        mean, var = x.loc.expand(shape), x.cov.var.expand(shape)
        _check_new(operand, moments.mean)
        residual = Residual(mean, var, moments, kind.moments, kind.kinks)
        term = residual_term(Scalar(residual, operand))
        maps = {t: rows * moments.gain for t, rows in operand.items()}
        return moments.mean, cls({**maps, term: _identity(moments.mean)}, moments.mean)

    @classmethod
    def bilinear(cls, kind: Bilinear) -> Result:
        """First order by the product rule; second order, ``x̃ ỹ - Cov(x, y)``, as a new term."""
        x, y = kind.inputs
        mean = kind.affine(x.loc, y.loc)
        first = _mapped(lambda a: kind.product(a, y.loc), (x,), mean)
        second = _mapped(lambda b: kind.product(x.loc, b), (y,), mean)
        maps = _sum(first, second)
        if x.cov.maps and y.cov.maps:
            _check_new(maps, mean)
            matches = bilinear_matches(kind, mean)
            cross = between(x.cov.maps, y.cov.maps)
            mean = mean + product_mean(matches, cross).view(mean.shape)
            term = residual_term(Products(matches, x.cov.maps, y.cov.maps))
            maps[term] = _identity(mean)
        return mean, cls(maps, mean)

    @classmethod
    def joint(cls, kind: Joint) -> Result:
        """By way of other operations if there is one, else by its second-order Taylor expansion."""
        (x,) = kind.inputs
        if (result := composed(kind)) is not None:
            return result
        mean = kind.function(x.loc)
        if not x.cov.maps:
            return mean, cls({}, mean)
        maps = _mapped(lambda rows: torch.func.jvp(kind.function, (x.loc,), (rows,))[1], (x,), mean)
        _check_new(maps, mean)
        shift, own = taylor(kind.function, x.loc, x.cov.matrix(), mean.numel())
        mean = mean + shift.view(mean.shape)
        return mean, cls({**maps, Term(own, x.cov.maps): _identity(mean)}, mean)

    @classmethod
    def linearised(cls, inputs: tuple[Random, ...], function: Callable[..., Any]) -> Any:
        """As any map of a whole vector: to second order, even."""
        if len(inputs) > 1:
            return super().linearised(inputs, function)
        (mean,) = floating(function(inputs[0].loc))
        return cls.joint(Joint((inputs[0],), function, lambda m, v: (mean, v)))

    @classmethod
    def noise(cls, kind: Noise) -> Result:
        """``x ξ = x + x (ξ - 1)``: the second has covariance ``Var(ξ) (Σ + m mᵀ)`` where a mask is shared."""
        (x,) = kind.inputs
        mean: Tensor = x.loc
        _check_new(x.cov.maps, mean)
        count = torch.Size(kind.shape).numel()
        mask = torch.arange(count, device=mean.device).view(kind.shape).expand(mean.shape)
        shared = mask.reshape(-1, 1) == mask.reshape(-1)
        flat = mean.reshape(-1)
        own = kind.var * torch.where(shared, x.cov.matrix() + flat.unsqueeze(1) * flat, 0)
        return mean, cls({**x.cov.maps, Term(own, x.cov.maps): _identity(mean)}, mean)


def _identity(like: Tensor) -> Tensor:
    """A term's elements as the elements of a tensor."""
    eye = torch.eye(like.numel(), dtype=like.dtype, device=like.device)
    return eye.view(like.numel(), *like.shape)


def _mapped(function: Any, inputs: tuple[Random, ...], mean: Tensor) -> dict[Term, Tensor]:
    """A linear function of all operands' maps; an operand has none for a term it does not depend on."""
    terms = list(dict.fromkeys(term for x in inputs for term in x.cov.maps))
    if not terms:
        return {}
    rows = sum(map(len, terms))
    _check_maps(rows, mean)
    stacks = []
    for x in inputs:
        absent = x.loc.detach().new_zeros((1, *x.shape))
        parts = [
            x.cov.maps[t] if t in x.cov.maps else absent.expand(len(t), *x.shape) for t in terms
        ]
        stacks.append(torch.cat(parts) if len(parts) > 1 else parts[0])
    result: Tensor = across(function, *stacks)
    return dict(zip(terms, result.split([len(t) for t in terms]), strict=True))


def _sum(first: Maps, second: Maps) -> dict[Term, Tensor]:
    """The maps of a sum."""
    result = dict(first)
    for term, rows in second.items():
        result[term] = result[term] + rows if term in result else rows
    return result


def _check_new(maps: Maps, mean: Tensor) -> None:
    """Refuse a further term, one row for each element, if it makes the maps too large."""
    _check_maps(sum(map(len, maps)) + mean.numel(), mean)


def _check_maps(rows: int, mean: Tensor) -> None:
    what = f"what a tensor of shape {tuple(mean.shape)} depends on, times its elements,"
    check_size(rows, mean.numel(), what)


def _check_input(dtype: torch.dtype, count: int) -> None:
    if dtype not in _DTYPES:
        raise TypeError(f"a dense covariance is kept in float32 or float64, not in {dtype}")
    check_size(count, count, f"the covariance of an input of {count} elements")


def _check_covariance(matrix: Tensor) -> None:
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("the covariance has infinite or NaN entries")
    if matrix.numel() == 0:
        return
    tolerance = 100 * torch.finfo(matrix.dtype).eps * matrix.abs().max() * len(matrix) ** 0.5
    if bool((matrix - matrix.mT).abs().max() > tolerance):
        raise ValueError("the covariance is not symmetric")
    least = torch.linalg.eigvalsh(matrix)[0]
    if bool(least < -tolerance):
        raise ValueError(
            f"the covariance is not positive semi-definite; its least eigenvalue is {least:.4g}"
        )
