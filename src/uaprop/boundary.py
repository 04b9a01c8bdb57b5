"""What a Gaussian is made from, checked before any work is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .kinds import Random
from .numerics.moments import HALF
from .numerics.underflow import has_values, safe, smallest_lost
from .statistic import Statistic

__all__ = [
    "as_dense",
    "as_factors",
    "as_mean",
    "as_variance",
    "check_factors",
    "check_spread",
    "private",
]


def as_mean(mean: Tensor | float) -> Tensor:
    """The mean as a floating-point tensor.

    Returns:
        The tensor.

    Raises:
        TypeError: if it is random already or not floating-point.
    """
    if isinstance(mean, Random):
        raise TypeError("the mean is a Gaussian already; pass a tensor")
    loc = mean if isinstance(mean, Tensor) else torch.as_tensor(mean)
    if isinstance(loc, Statistic):
        loc = loc.as_subclass(Tensor)
    if not loc.is_floating_point():
        raise TypeError(
            f"the mean must be floating-point, not {loc.dtype}; convert it, as in mean.float()"
        )
    return private(loc)


def private(tensor: Tensor) -> Tensor:
    """The tensor; of an inference tensor a copy, since nothing tells when it is modified in place."""
    if torch.compiler.is_compiling():  # which knows of no such tensors
        return tensor
    return tensor.clone() if tensor.is_inference() else tensor


def as_variance(value: Any, name: str, loc: Tensor) -> Tensor:
    """Variances in the mean's dtype and on its device, from variances or standard deviations, checked.

    Args:
        value: a number or a tensor.
        name: "var" or "std", which it is.
        loc: the mean.

    Returns:
        The variances, not yet broadcast.

    Raises:
        TypeError: if it is random or complex.
        ValueError: if it is on another device, negative, infinite or NaN, or so small that its variance is
            zero in the mean's dtype.
    """
    if isinstance(value, Random):
        raise TypeError(f"{name} is a Gaussian; pass a tensor, such as its .var")
    if isinstance(value, Tensor):
        if value.device != loc.device and value.ndim > 0:
            raise ValueError(
                f"mean is on {loc.device} but {name} on {value.device}; move one of them"
            )
        if value.is_complex():
            raise TypeError(f"{name} must be real, not {value.dtype}")
        given = value.as_subclass(Tensor) if isinstance(value, Statistic) else value
        given = given.to(device=loc.device)
    else:
        given = torch.as_tensor(value, dtype=torch.float64, device=_wide(loc))
    check_spread(given, name)
    if name == "var":
        variance = given.to(device=loc.device, dtype=loc.dtype)
    else:  # half precision has too few small numbers for squares on the way
        working = torch.promote_types(loc.dtype, torch.float32)
        variance = given.to(device=loc.device, dtype=working).square().to(loc.dtype)
    if variance is not given:
        least = check_spread(variance, name if name == "var" else "the square of std")
        small = least < math.inf and least < safe(loc.dtype)
        lost = smallest_lost(given, variance, squared=name == "std") if small else None
        if lost is not None:
            raise ValueError(_too_small(f"{name}={lost:.3g}", loc.dtype))
    return private(variance)


def _too_small(what: str, dtype: torch.dtype) -> str:
    wider = "float32" if dtype in HALF else "float64"
    return (
        f"{what} is too small for a mean in {dtype}: the variance would become zero, or be far off; make "
        f"the mean {wider}, as in mean.to(torch.{wider})"
    )


def _exact(value: Any) -> Tensor:
    """What was given, in float64 on the CPU."""
    return torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()


def _check_kept(exact: Callable[[], Tensor], variance: Tensor, name: str) -> None:
    """Refuse what has variances that their dtype does not hold.

    Args:
        exact: gives the variances as they should be, in any dtype; called if some are small.
        variance: what they became.
        name: what they are of.

    Raises:
        ValueError: naming the smallest.
    """
    if not has_values(variance) or variance.numel() == 0:
        return
    if bool(variance.detach().amin() < safe(variance.dtype)):
        lost = smallest_lost(exact(), variance)
        if lost is not None:
            raise ValueError(_too_small(f"{name} with a variance of {lost:.3g}", variance.dtype))


def _wide(loc: Tensor) -> torch.device:
    """A device that has float64: the mean's, if it is not one of those that have not."""
    return torch.device("cpu") if loc.device.type == "mps" else loc.device


def check_spread(spread: Tensor, name: str) -> float:
    """Refuse a variance or deviation that is negative, infinite or NaN.

    Where values cannot be looked at (a trace, ``torch.vmap``, the meta device) nothing is checked.

    Returns:
        The smallest; infinity if there is none, or it cannot be looked at.

    Raises:
        ValueError: naming what is wrong.
    """
    if not has_values(spread) or spread.numel() == 0:
        return math.inf
    low, high = (bound.item() for bound in spread.detach().aminmax())
    if not (low >= 0 and high < math.inf):
        if low < 0:
            problem = f"negative (the smallest is {low:.6g})"
        else:
            problem = "infinite or NaN"
        raise ValueError(f"{name} must be finite and not negative; some of it is {problem}")
    return float(low)


def as_factors(factors: Any, mean: Tensor) -> Tensor:
    """Factors ``(k, *shape)`` as a tensor like the mean.

    Returns:
        The factors in the mean's dtype, on its device.

    Raises:
        ValueError: if the shapes do not fit or a factor is not finite.
    """
    spread = torch.as_tensor(factors, dtype=mean.dtype, device=mean.device)
    if spread.shape[1:] != mean.shape or spread.ndim != mean.ndim + 1 or len(spread) == 0:
        raise ValueError(
            f"factors must have the shape (k, *{tuple(mean.shape)}), one for each source of noise, "
            f"not {tuple(spread.shape)}"
        )
    if has_values(spread) and not bool(spread.isfinite().all()):
        raise ValueError("factors must be finite")
    return private(spread)


def check_factors(factors: Any, variance: Tensor) -> None:
    """Refuse factors that are too small for the dtype of the variances that they became.

    Raises:
        ValueError: naming the smallest variance.
    """
    _check_kept(lambda: _exact(factors).square().sum(0), variance, "factors")


def as_dense(covariance: Any, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Dense covariances of a mean's batch elements, checked.

    Args:
        covariance: ``(batch, n, n)``, or ``(n, n)`` for all batch elements; ``(n, n)`` for a vector.
        mean: floating-point.

    Returns:
        The variances in the mean's shape, and the covariances, ``(batch, n, n)`` or ``(n, n)``.

    Raises:
        TypeError: if the mean is in half precision, or the covariance random or complex.
        ValueError: if the shapes do not fit, or it is no covariance.
    """
    if mean.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"a dense covariance is kept in float32 or float64, not in {mean.dtype}; convert the mean, as "
            "in mean.float()"
        )
    if isinstance(covariance, Random):
        raise TypeError("the covariance is a Gaussian; pass a tensor")
    if isinstance(covariance, Tensor):
        if covariance.is_complex():
            raise TypeError(f"the covariance must be real, not {covariance.dtype}")
        if covariance.device != mean.device:
            raise ValueError(
                f"mean is on {mean.device} but the covariance on {covariance.device}; move one of them"
            )
    given = torch.as_tensor(covariance, dtype=mean.dtype, device=mean.device)
    if isinstance(given, Statistic):
        given = given.as_subclass(Tensor)
    vector = mean.ndim < 2
    size = mean.numel() if vector else mean.shape[1:].numel()
    one, each = (size, size), (len(mean) if mean.ndim else 1, size, size)
    if given.shape != one and (vector or given.shape != each):
        wanted = f"{one}" if vector else f"{each}, or {one} for all batch elements"
        raise ValueError(
            f"a mean of shape {tuple(mean.shape)} has a covariance of shape {wanted}, not "
            f"{tuple(given.shape)}"
        )
    if has_values(given):
        _check_covariances(given.detach())
    dense = (given + given.mT) / 2
    var = dense.diagonal(dim1=-2, dim2=-1).clamp_min(0)
    _check_kept(
        lambda: _exact(covariance).diagonal(dim1=-2, dim2=-1).clamp_min(0),
        var,
        "a covariance",
    )
    if not vector:
        dense, var = dense.expand(each), var.expand(each[:2])
    return var.reshape(mean.shape), dense


def _check_covariances(matrices: Tensor) -> None:
    """Refuse what is not finite, symmetric and positive semi-definite, to rounding."""
    if not bool(matrices.isfinite().all()):
        raise ValueError("the covariance has infinite or NaN entries")
    if matrices.numel() == 0:
        return
    largest = matrices.abs().amax((-2, -1))
    tolerance = 100 * torch.finfo(matrices.dtype).eps * largest * matrices.shape[-1] ** 0.5
    if bool(((matrices - matrices.mT).abs().amax((-2, -1)) > tolerance).any()):
        raise ValueError("the covariance is not symmetric")
    smallest = matrices.diagonal(dim1=-2, dim2=-1).amin()
    if bool(smallest < 0):  # however small beside the others
        raise ValueError(f"the covariance has a negative variance, {float(smallest):.4g}")
    least = torch.linalg.eigvalsh(matrices)[..., 0]
    if bool((least < -tolerance).any()):
        raise ValueError(
            f"the covariance is not positive semi-definite; its least eigenvalue is {least.min():.4g}"
        )
