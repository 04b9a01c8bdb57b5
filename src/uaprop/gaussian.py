"""The value that flows through a model: a tensor with a mean and a covariance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .boundary import as_dense, as_factors, as_mean, as_variance, check_factors, private
from .covariance import Covariance, Dense, Diagonal, Factors, Sources
from .description import described
from .dispatch import admit_imported, apply
from .dispatch.watch import refused
from .numerics.autocast import outside_autocast
from .numerics.chance import RandomNumbers
from .numerics.moments import root
from .operators import Operators
from .provenance import Explained, Provenance
from .statistic import Statistic
from .stored import Stored

__all__ = ["Gaussian"]


class Gaussian(Explained, Operators, Stored):
    """A random tensor ``x ~ N(mean, covariance)`` that behaves like a tensor inside a model.

    ``Gaussian(mean, var)`` or ``Gaussian(mean, std=0.1)`` has independent elements. Pass it to any
    ``nn.Module``; what comes out is a Gaussian again.

    It is not a ``torch.Tensor``: it has the parts of a tensor's interface for which an answer with the right
    variance exists, and raises :class:`~uaprop.UnsupportedOperation` for the rest.

    Args:
        mean: a floating-point tensor, or anything ``torch.as_tensor`` takes.
        var: variances, a number or a tensor that broadcasts with ``mean``.
        std: standard deviations instead of variances.

    Raises:
        TypeError: if both or neither of ``var`` and ``std`` are given, or the mean is not
            floating-point.
        ValueError: if a variance is negative, infinite or NaN, or too small for the mean's dtype, if the
            shapes do not broadcast or the devices differ.
    """

    __slots__ = ()
    __array_ufunc__ = None  # numpy leaves its operators to ours

    def __init__(
        self,
        mean: Tensor | float,
        var: Tensor | float | None = None,
        *,
        std: Tensor | float | None = None,
    ) -> None:
        loc = as_mean(mean)
        if (var is None) == (std is None):
            given = "neither" if var is None else "both"
            raise TypeError(f"Gaussian takes var or std, exactly one of them; {given} were given")
        spread, name = (var, "var") if var is not None else (std, "std")
        variance = as_variance(spread, name, loc)
        if loc.shape != variance.shape:
            try:
                loc, variance = torch.broadcast_tensors(loc, variance)
            except RuntimeError:
                raise ValueError(
                    f"mean of shape {tuple(loc.shape)} and {name} of shape {tuple(variance.shape)} do "
                    "not broadcast"
                ) from None
        self._hold(loc, Diagonal(variance))
        admit_imported()

    @classmethod
    def from_factors(cls, mean: Tensor | float, factors: Tensor) -> Gaussian:
        """``x = mean + Σ_k factors[k] · ξ_k`` with independent standard normal ``ξ``.

        Low-rank noise that many elements share: brightness, blur, drift. Linear operations carry it
        exactly, and so do all methods but ``"diagonal"`` and ``"calibrated"``, which refuse it.

        Args:
            mean: a floating-point tensor.
            factors: ``(k, *shape)``, one tensor of ``mean``'s shape for each source of noise.

        Returns:
            A Gaussian with covariance ``Σ_k factors[k] factors[k]ᵀ``.

        Raises:
            ValueError: if the shapes do not fit, or a factor is not finite or too small for the mean's dtype.
        """
        loc = as_mean(mean)
        spread = as_factors(factors, loc)
        sources = Sources(max(16, 1 << (2 * len(spread) - 1).bit_length()))
        cov = Factors.codes(spread, sources)
        check_factors(factors, cov.var)
        return cls._from_covariance(loc, cov)

    @classmethod
    def from_dense(cls, mean: Tensor | float, covariance: Tensor) -> Gaussian:
        """Correlated noise of any form, from its covariance matrices.

        All methods but ``"diagonal"`` and ``"calibrated"`` take it. Batch elements are independent.

        Args:
            mean: a floating-point tensor in float32 or float64; its first dimension is the batch, unless it
                is a vector.
            covariance: ``(batch, n, n)`` with a batch element's ``n`` elements in their order; or ``(n, n)``,
                the same for all of them.

        Returns:
            A Gaussian with these covariances.

        Raises:
            TypeError: if the mean is in half precision.
            ValueError: if the shapes do not fit, or a matrix is not finite, not symmetric, or not positive
                semi-definite, to rounding; or if a variance is too small for the mean's dtype.
        """
        loc = as_mean(mean)
        var, dense = as_dense(covariance, loc)
        return cls._from_covariance(loc, Dense(var, dense))

    @classmethod
    def _from_covariance(cls, mean: Tensor, cov: Covariance) -> Gaussian:
        """A Gaussian from a mean and a representation of its covariance, unchecked."""
        value = cls.__new__(cls)
        value._hold(mean, cov)
        return value

    # ------------------------------------------------------------ what it is

    @property
    def mean(self) -> Statistic:
        """The mean; called, as in ``x.mean(dim=1)``, the average over dimensions."""
        return Statistic.of(private(self.loc), self, torch.Tensor.mean)

    @property
    def var(self) -> Statistic:
        """The marginal variances; called, torch's reduction of that name."""
        return Statistic.of(private(self.cov.var), self, torch.Tensor.var)

    @property
    def std(self) -> Statistic:
        """The marginal standard deviations; called, torch's reduction of that name."""
        return Statistic.of(root(self.cov.var), self, torch.Tensor.std)

    @property
    def device(self) -> torch.device:
        """The mean's device."""
        return self._loc.device

    @property
    def layout(self) -> torch.layout:
        """The mean's layout."""
        return self._loc.layout

    @property
    def requires_grad(self) -> bool:
        """Whether mean or variance take part in autograd."""
        return self.loc.requires_grad or self.cov.var.requires_grad

    @property
    def is_cuda(self) -> bool:
        """Whether the mean is on a CUDA device."""
        return self._loc.is_cuda

    @property
    def T(self) -> Gaussian:  # noqa: N802, torch's own name
        """The dimensions reversed."""
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Gaussian:  # noqa: N802, torch's own name
        """The last two dimensions exchanged."""
        return self.transpose(-2, -1)

    @property
    def H(self) -> Gaussian:  # noqa: N802, torch's own name
        """The two dimensions of a matrix exchanged."""
        if self.ndim not in (0, 2):
            raise RuntimeError(f"tensor.H is for matrices, and this has {self.ndim} dimensions")
        return self.T

    @property
    def mH(self) -> Gaussian:  # noqa: N802, torch's own name
        """The last two dimensions exchanged."""
        return self.mT

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The shape, or one of its entries."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """The number of elements."""
        return self._loc.numel()

    def covariance(self) -> Tensor:
        """The dense covariance of each batch element.

        Returns:
            ``(batch, n, n)`` with ``n`` elements per batch element (the first dimension is the batch);
            ``(n, n)`` for a vector.
        """
        with outside_autocast():
            dense: Tensor = self.cov.dense()
        return dense

    def with_provenance(self, provenance: Provenance) -> Gaussian:
        """The same value with an account of where it comes from."""
        self._provenance = provenance
        return self

    def sample(self, n: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw ``n`` tensors, stacked along a new first dimension: ``(n, *shape)``."""
        if n < 1:
            raise ValueError(f"the number of samples must be at least 1, not {n}")
        with outside_autocast():
            draws: Tensor = self.loc + self.cov.deviations(n, RandomNumbers(generator))
        return draws

    def log_prob(self, x: Tensor | float) -> Tensor:
        """The log-density of each element's marginal at ``x``, broadcast.

        A zero variance is a point mass: its log-density is +∞ at the mean and -∞ elsewhere.

        Returns:
            A tensor of the broadcast shape.
        """
        var = self.cov.var
        offset = torch.as_tensor(x, dtype=self.dtype, device=self.device) - self.loc
        safe = torch.where(var > 0, var, 1)
        density = -0.5 * (offset.square() / safe + torch.log(2 * torch.pi * safe))
        point = torch.where(offset == 0, torch.inf, -torch.inf).to(self.dtype)
        return torch.where(var > 0, density, point)

    def __repr__(self) -> str:
        return described(self)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a 0-d Gaussian")
        return self.shape[0]

    def __iter__(self) -> Iterator[Gaussian]:
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        text = "the truth value of a Gaussian is random; decide on x.mean, or propagate the model with "
        raise refused(TypeError(text + 'method="samples"'))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise refused(TypeError("a Gaussian is not an array; convert x.mean and x.var"))

    # ------------------------------------------------------------ what it does

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer a function of torch that was given a Gaussian."""
        return apply(func, args, kwargs or {}, Gaussian._from_covariance)

    def _run(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return apply(func, args, kwargs, Gaussian._from_covariance)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Every other method of a tensor, see below."""


class _Method(str):
    """A method of a tensor, through the rules. There are hundreds, so each is no more than a name."""

    __slots__ = ()

    def __get__(self, value: Gaussian | None, owner: type | None = None) -> Callable[..., Any]:
        operands = () if value is None else (value,)
        return functools.partial(_called, str(self), *operands)


def _called(name: str, *args: Any, **kwargs: Any) -> Any:
    # looked up here: torch.compile does not know torch's methods written in Python elsewhere
    return apply(getattr(Tensor, name), args, kwargs, Gaussian._from_covariance)


def _metadata(name: str) -> property:
    """An attribute of a tensor that its mean has as well."""
    return property(lambda self: getattr(self.loc, name))


# Not by __getattr__, with which every attribute of a Gaussian would take several times as long.
for _name in dir(Tensor):
    _is_method = callable(getattr(Tensor, _name)) and not _name.startswith("__")
    if _is_method and not hasattr(Gaussian, _name):
        setattr(Gaussian, _name, _Method(_name))
for _name in (
    *("is_cpu", "is_meta", "is_mps", "is_nested", "is_quantized", "is_sparse", "is_xpu"),
    "itemsize",
):
    setattr(Gaussian, _name, _metadata(_name))
