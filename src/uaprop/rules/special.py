"""Special functions, the tangent and the inverse trigonometric functions."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from ..errors import UnsupportedOperation
from ..kinds import Elementwise, Random
from ..numerics import elementary, log_ndtr, logit, softsign, trigonometric
from ..registry import rule

T = torch.Tensor


@rule(torch.erfc, T.erfc, torch.special.erfc, source="Plackett (1954)")
def erfc(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.erfc)


@rule(torch.special.ndtr, source="Plackett (1954)")
def ndtr(input: Random) -> Elementwise:
    return Elementwise((input,), elementary.ndtr, monotone=True)


_QUADRATURE = "Gauss-Legendre quadrature in a variable in which it is smooth"


@rule(torch.special.log_ndtr, exact=False, source=_QUADRATURE)
def log_ndtr_(input: Random) -> Elementwise:
    return Elementwise((input,), log_ndtr.log_ndtr, monotone=True)


@rule(F.softsign, source=_QUADRATURE)
def softsign_(input: Random) -> Elementwise:
    return Elementwise((input,), softsign.softsign, monotone=True)


@rule(torch.atan, T.atan, torch.arctan, T.arctan, source=_QUADRATURE)
def atan(input: Random) -> Elementwise:
    return Elementwise((input,), trigonometric.atan, monotone=True)


@rule(torch.asin, T.asin, torch.arcsin, T.arcsin, exact=False, source=_QUADRATURE)
def asin(input: Random) -> Elementwise:
    check_within(input, -1.0, 1.0)
    return Elementwise((input,), trigonometric.asin)


@rule(torch.acos, T.acos, torch.arccos, T.arccos, exact=False, source=_QUADRATURE)
def acos(input: Random) -> Elementwise:
    check_within(input, -1.0, 1.0)
    return Elementwise((input,), trigonometric.acos)


@rule(torch.tan, T.tan, exact=False, source=_QUADRATURE)
def tan(input: Random) -> Elementwise:
    if not _is_unchecked(input):
        mean, var = input.loc.detach(), input.cov.var.detach()
        near = trigonometric.distance_to_pole(mean) < 6 * var.sqrt()
        if bool((near & (var > 0)).any()):
            raise UnsupportedOperation(
                "",
                reason="a tangent has no variance near its poles, and some element is less than six "
                "standard deviations away from one",
                remedy='Use method="samples" or method="hybrid", which take real samples.',
            )
    return Elementwise((input,), trigonometric.tan)


@rule(
    torch.logit,
    T.logit,
    torch.special.logit,
    exact=False,
    source="the beta distribution of the same mean and variance; with eps by quadrature",
)
def logit_(input: Random, eps: float | None = None) -> Elementwise:
    if eps is not None and 0 < eps < 0.5:
        return Elementwise((input,), functools.partial(logit.clamped_logit, eps=eps))
    if eps is not None and eps != 0:
        raise UnsupportedOperation("", reason=f"eps={eps} is not between 0 and 0.5")
    check_within(input, 0.0, 1.0)
    return Elementwise((input,), logit.logit)


def _is_unchecked(input: Random) -> bool:
    """Whether the values are not known, or are samples, which take any function as it is."""
    return bool(input.cov.needs_functions or torch.compiler.is_compiling() or input.loc.is_meta)


def check_within(input: Random, low: float, high: float) -> None:
    """Refuse what may well lie outside: an element less than three standard deviations from a bound.

    Raises:
        UnsupportedOperation: if there is such an element.
    """
    if _is_unchecked(input):
        return
    mean, var = input.loc.detach(), input.cov.var.detach()
    reach = 3 * var.sqrt()
    if bool(((var > 0) & ((mean - reach < low) | (mean + reach > high))).any()):
        raise UnsupportedOperation(
            "",
            reason=f"it is for what lies between {low:g} and {high:g}, and some element is less than "
            "three standard deviations inside",
            remedy="Keep it inside, as in torch.asin(0.9 * x), or use "
            'method="samples" or method="hybrid", which take real samples.',
        )
