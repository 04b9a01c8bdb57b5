"""Softmax, its logarithm, and the logarithm of a sum of exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from ..kinds import Elementwise, Joint, Linear, Random
from ..numerics import softmax as numerics
from ..registry import rule
from .pool import far_below

T = torch.Tensor
_SOURCE = "Schwartz & Yeh (1982) for the sums; in long rows their statistical linearisation"


# ------------------------------------------------------------ short rows: pairs


def _union(a: Any, b: Any) -> Any:
    """``log(eᵃ + eᵇ)``, whatever correlation the two have."""
    return b + F.softplus(a - b)


def _sums(logits: Any) -> list[Any]:
    """``log Σ eˣ`` over pairs, over pairs of pairs and so on, to the two halves of the row."""
    count = logits.shape[-1]
    size = 1 << max(count - 1, 1).bit_length()
    if size > count:  # e⁻⁶⁰ adds nothing in any dtype
        logits = F.pad(logits, (0, size - count), value=far_below(logits) - 60)
    levels = [logits]
    while levels[-1].shape[-1] > 2:
        levels.append(_union(levels[-1][..., 0::2], levels[-1][..., 1::2]))
    return levels


def _by_pairs(logits: Any) -> Any:
    """``x_i - log Σ_{j≠i} e^{x_j}``; the sums from one balanced tree, up and down."""
    levels = _sums(logits)
    rest = None
    for sums in reversed(levels):
        sibling = sums.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        rest = sibling if rest is None else _union(rest.repeat_interleave(2, -1), sibling)
    return (levels[0] - rest)[..., : logits.shape[-1]]


# ------------------------------------------------------------ long rows: a linear map


def odds(input: Any, found: numerics.Odds) -> Any:
    """``x_i - log Σ_{j≠i} e^{x_j}`` along the last dimension, linearised and without its offset."""
    if has_torch_function_unary(input):
        return handle_torch_function(odds, (input,), input, found)
    return found.apply(input)


@rule(odds)
def linear_odds(input: Random, found: numerics.Odds) -> Linear:
    return Linear((input,), found.apply, found.apply, found.squared)


def brief_sigmoid(input: Any) -> Any:
    """The sigmoid; on a Gaussian with moments of a few digits, which take a fraction of the time."""
    if has_torch_function_unary(input):
        return handle_torch_function(brief_sigmoid, (input,), input)
    return torch.sigmoid(input)


@rule(brief_sigmoid)
def sigmoid_in_brief(input: Random) -> Elementwise:
    return Elementwise((input,), numerics.brief_sigmoid)


def _linearised(logits: Any) -> Any:
    found, mean = numerics.odds(logits.loc, lambda trial: odds(logits, trial).cov.var)
    result = odds(logits, found)
    return result + (mean - result.loc)


def _log_sum_of_many(logits: Any) -> Any:
    """``Σ w x`` and half of ``Σ w (x - Σ w x)²``: first and second order of the Hermite expansion."""
    found, _ = numerics.odds(logits.loc, lambda trial: odds(logits, trial).cov.var)
    first = (logits * found.weights).sum(-1, keepdim=True)
    apart = logits - first
    apart = apart - apart.loc
    second = 0.5 * (apart.square() * found.weights).sum(-1, keepdim=True)
    mean = numerics.mean_log_sum(logits.loc, apart.cov.var, second.cov.var)
    result = first + second
    return (result + (mean - result.loc)).squeeze(-1)


# ------------------------------------------------------------ the rules


def _within_reach(logits: Any) -> Any:
    """Logits along the last dimension; those without any weight, as masked ones, are constant."""
    outside, floor = numerics.out_of_reach(logits.loc, logits.cov.var)
    if not torch.compiler.is_compiling() and not bool(outside.any()):
        return logits
    return torch.where(outside, floor, logits)


def _softmax(logits: Any) -> Any:
    long = logits.shape[-1] > numerics.LONG
    parts = _logistic(_linearised(logits), brief_sigmoid) if long else _logistic(_by_pairs(logits))
    total = parts.sum(-1, keepdim=True)
    return parts + (1 - total) * (parts.loc / total.loc)  # they sum to one whatever the noise


def _logistic(x: Any, sigmoid: Callable[[Any], Any] = torch.sigmoid) -> Any:
    """``s(x) = 1 - s(-x)``, from where it bends upwards: so that one's loss is another's gain."""
    above = x.loc > 0
    sign = torch.where(above, -1, 1).to(x.dtype)
    return sigmoid(x * sign) * sign + above.to(x.dtype)


def _log_softmax(logits: Any) -> Any:
    return logits - _log_sum(logits).unsqueeze(-1)


def _log_sum(logits: Any) -> Any:
    if logits.shape[-1] > numerics.LONG:
        return _log_sum_of_many(logits)
    halves = _sums(logits)[-1]
    return _union(halves[..., 0], halves[..., 1])


def _of_rows(
    logits: Any, composed: Callable[[Any], Any], plain: Callable[[Tensor, int], Tensor]
) -> Any:
    """A map of rows along the last dimension, with torch's own value for logits that are not finite.

    A row whose logits are all masked, or that has one of plus infinity or NaN, is not random. Elsewhere a
    logit of minus infinity has no weight, and no say.

    Returns:
        The random tensor.
    """
    if torch.compiler.is_compiling() or bool(torch.isfinite(logits.loc).all()):
        return composed(_within_reach(logits))
    values = plain(logits.loc.detach(), -1)
    usable = torch.isfinite(torch.logsumexp(logits.loc, -1, keepdim=True))
    zeros = torch.zeros((), dtype=values.dtype, device=values.device)
    result = composed(_within_reach(torch.where(usable, logits, zeros)))
    certain = ~usable | (logits.loc == -torch.inf)
    return torch.where(certain, values, result)


def _along(
    input: Random,
    dim: int,
    dtype: Any,
    plain: Callable[..., Tensor],
    moments: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]],
    composed: Callable[[Any], Any],
) -> Joint:
    def cast(x: Any) -> Any:
        return x if dtype is None else x.to(dtype)

    def by_way_of_odds(x: Any) -> Any:
        if x.ndim == 0:
            return by_way_of_odds(x.unsqueeze(0)).squeeze(0)
        return _of_rows(cast(x).movedim(dim, -1), composed, plain).movedim(-1, dim)

    as_it_is = input.cov.needs_functions and input.ndim > 0 and input.shape[dim] > numerics.LONG
    return Joint(
        (input,),
        function=lambda x: plain(x, dim, dtype=dtype),
        moments=lambda m, v: moments(cast(m), cast(v), dim),
        composed=None if as_it_is else by_way_of_odds,  # draws take a long row as it is
    )


def _needs_dim(name: str, dim: Any) -> int:
    if dim is None:
        raise ValueError(f"{name}: give the dimension, as in {name}(x, dim=1)")
    return int(dim)


@rule(F.softmax, exact=False, source=_SOURCE)
def softmax(input: Random, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Joint:
    where = _needs_dim("softmax", dim)
    return _along(input, where, dtype, torch.softmax, numerics.softmax, _softmax)


@rule(torch.softmax, T.softmax, torch.special.softmax, exact=False, source=_SOURCE)
def torch_softmax(input: Random, dim: int, dtype: Any = None) -> Joint:
    return softmax(input, dim, dtype=dtype)


@rule(F.softmin, exact=False, source=_SOURCE)
def softmin(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return F.softmax(-input, _needs_dim("softmin", dim), dtype=dtype)


@rule(F.log_softmax, exact=False, source=_SOURCE)
def log_softmax(input: Random, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Joint:
    where = _needs_dim("log_softmax", dim)
    return _along(input, where, dtype, torch.log_softmax, numerics.log_softmax, _log_softmax)


@rule(torch.log_softmax, T.log_softmax, torch.special.log_softmax, exact=False, source=_SOURCE)
def torch_log_softmax(input: Random, dim: int, dtype: Any = None) -> Joint:
    return log_softmax(input, dim, dtype=dtype)


@rule(torch.logsumexp, T.logsumexp, torch.special.logsumexp, exact=False, source=_SOURCE)
def logsumexp(input: Random, dim: Any, keepdim: bool = False) -> Joint:
    dims = [d % max(input.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)]
    if not dims or input.ndim == 0:
        dims = list(range(input.ndim))

    def rows(x: Any) -> Any:
        if x.ndim == 0:
            return x.unsqueeze(0)
        return x.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))

    def shaped(x: Any) -> Any:
        if keepdim:
            for d in sorted(dims):
                x = x.unsqueeze(d)
        return x

    def moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        logits, spreads = rows(m), rows(v)
        plain = torch.logsumexp(logits, -1)
        certain = ~torch.isfinite(plain)  # all of them masked, or one of them infinite
        nothing = certain.unsqueeze(-1)
        value, spread = numerics.logsumexp(
            torch.where(nothing, 0, logits), torch.where(nothing, 0, spreads)
        )
        return (
            shaped(torch.where(certain, plain, value)),
            shaped(torch.where(certain, 0, spread)),
        )

    def composed(x: Any) -> Any:
        logits = rows(x)
        plain = torch.logsumexp(logits.loc.detach(), -1)
        if torch.compiler.is_compiling() or bool(torch.isfinite(plain).all()):
            return shaped(_log_sum(_within_reach(logits)))
        usable = torch.isfinite(plain)
        zeros = torch.zeros((), dtype=plain.dtype, device=plain.device)
        rest = torch.where(usable.unsqueeze(-1), logits, zeros)
        return shaped(torch.where(usable, _log_sum(_within_reach(rest)), plain))

    return Joint((input,), lambda x: torch.logsumexp(x, dim, keepdim), moments, composed)


# ------------------------------------------------------------ of two


@rule(torch.logaddexp, T.logaddexp, source="Schwartz & Yeh (1982)")
def logaddexp(input: Any, other: Any) -> Any:
    if input is other:
        return input + math.log(2)
    if not isinstance(input, Random) or not isinstance(other, Random):
        random: Any
        random, constant = (input, other) if isinstance(input, Random) else (other, input)
        finite = torch.isfinite(constant)
        level = torch.where(finite, constant, 0)  # minus infinity adds nothing
        result = level + F.softplus(random - level)
        return torch.where(finite, result, torch.where(constant > 0, constant, random))
    shape = torch.broadcast_shapes(input.shape, other.shape)
    pair: Any = torch.stack([x.expand(shape) for x in (input, other)])  # type: ignore[attr-defined]

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        first, second = numerics.logaddexp((mean[0], var[0]), (mean[1], var[1]))
        certain = (var == 0).all(0)
        return torch.where(certain, torch.logaddexp(mean[0], mean[1]), first), second

    return Joint(
        (pair,), lambda x: torch.logaddexp(x[0], x[1]), moments, lambda x: _union(x[0], x[1])
    )


@rule(torch.logaddexp2, T.logaddexp2, source="Schwartz & Yeh (1982)")
def logaddexp2(input: Any, other: Any) -> Any:
    rate = math.log(2)
    return torch.logaddexp(input * rate, other * rate) / rate
