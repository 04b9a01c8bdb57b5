"""Independent elements: the report's assumption.

Exact for one linear layer of independent inputs; after that the layer's outputs share inputs, and the
correlation between them is dropped. On trained networks the output's standard deviation comes out
many times too small. The operands of a sum or a product are taken to be independent of each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Bilinear, Elementwise, Joint, Larger, Linear, Noise, Select
from ..numerics.chance import RandomNumbers
from ..numerics.kernel import Kernel
from ..numerics.maximum import larger
from ..numerics.moments import root, untracked
from .base import Covariance, Result, per_batch_element, rearranged
from .postponed import Postponed, passed

__all__ = ["Diagonal"]


class Diagonal(Covariance):
    """A variance for each element and nothing else."""

    __slots__ = ("_var",)

    uncorrelated = True

    def __init__(self, var: Tensor | Postponed) -> None:
        self._var = var

    @property
    def var(self) -> Tensor:
        """Marginal variances."""
        var = self._var
        if isinstance(var, Postponed):
            self._var = var = var.value()
        return var

    @property
    def waiting(self) -> Postponed | None:
        """The variances, if they are not computed yet."""
        var = self._var
        return var if isinstance(var, Postponed) else None

    def dense(self) -> Tensor:
        """Diagonal matrices, one for each batch element."""
        return torch.diag_embed(per_batch_element(self.var))

    def deviations(self, count: int, noise: RandomNumbers) -> Tensor:
        """Independent normal samples."""
        var = self.var
        std = var.sqrt() if untracked(var) else root(var)
        return noise.normal(count, std) * std

    def times(self, jacobian: Tensor) -> Tensor:
        """``J diag(v)``."""
        return jacobian * self.var.reshape(len(jacobian), 1, jacobian.shape[-1])

    @classmethod
    def linear(cls, kind: Linear) -> Result:
        """``Var(Σ a_i x_i) = Σ a_i² v_i``."""
        mean, var = passed(kind)
        return mean, cls(var)

    @classmethod
    def select(cls, kind: Select) -> Any:
        """The same rearrangement of means and variances."""
        return rearranged(kind, cls)

    @classmethod
    def elementwise(cls, kind: Elementwise) -> Result:
        """The marginal moments; the gain is not needed."""
        (x,) = kind.inputs
        if isinstance(kind.moments, Kernel):
            mean, var = kind.moments.marginal(x.loc, x.cov.var)
            return mean, cls(var)
        moments = kind.moments(x.loc, x.cov.var)
        return moments.mean, cls(moments.var)

    @classmethod
    def bilinear(cls, kind: Bilinear) -> Result:
        """``Var(Σ x_i y_i) = Σ m_x² v_y + v_x m_y² + v_x v_y`` (Goodman 1960)."""
        x, y = kind.inputs
        if x is y:
            raise UnsupportedOperation(
                "",
                reason="both operands are the same random tensor, and this method takes operands "
                "to be independent",
                remedy='Use method="samples".',
            )
        var = kind.product(x.loc.square(), y.cov.var)
        var = var + kind.product(x.cov.var, y.loc.square() + y.cov.var)
        return kind.affine(x.loc, y.loc), cls(var)

    @classmethod
    def joint(cls, kind: Joint) -> Result:
        """The map's own formula for independent inputs."""
        (x,) = kind.inputs
        mean, var = kind.moments(x.loc, x.cov.var)
        return mean, cls(var)

    @classmethod
    def larger(cls, kind: Larger) -> Result:
        """The larger of two independent elements (Clark 1961)."""
        a, b = kind.inputs
        mean, var = larger((a.loc, a.cov.var), (b.loc, b.cov.var))
        return mean, cls(var)

    @classmethod
    def noise(cls, kind: Noise) -> Result:
        """``Var(x ξ) = v + Var(ξ) (v + m²)``."""
        (x,) = kind.inputs
        return x.loc, cls(x.cov.var + kind.var * (x.cov.var + x.loc.square()))
