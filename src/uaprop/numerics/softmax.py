"""Softmax of Gaussian logits: each probability is a sigmoid, ``p_i = s(x_i - L_i)``.

``L_i = log Σ_{j≠i} e^{x_j}`` is nearly Gaussian. For independent logits in short rows its moments come from
a balanced tree of pairs (the method of Schwartz & Yeh 1982 for sums of log-normals); in long rows, and
whatever the correlation, from its statistical linearisation (:class:`Odds`). With two classes both are
exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .logistic import logsigmoid, sigmoid, softplus
from .maximum import Marginal, sharp_union
from .moments import HALF, Moments, piecewise, root, working_precision
from .quadrature import hermite, tensors

__all__ = [
    "LONG",
    "Odds",
    "brief_sigmoid",
    "log_softmax",
    "logsumexp",
    "mean_log_sum",
    "odds",
    "out_of_reach",
    "softmax",
]

LONG = 16  # longer rows are linearised: about as accurate from here on, and many times faster
_NOTHING = -1e30  # the logarithm of an empty sum, as far as any dtype can tell
_REACH = 12.0  # deviations that a Gaussian does not stray
_NIL = 800.0  # e⁻⁸⁰⁰ is zero in every dtype
_LEAST = 1e-18  # of what the other weights sum to: its square is no zero in any dtype
_STEPS = 2  # of the iteration for the weights
_RULE = hermite(12)


# ------------------------------------------------------------ any correlation, long rows


@dataclass(frozen=True)
class Odds:
    """``x_i - L_i`` as a linear map of the logits, along the last dimension.

    ``E[∂L_i/∂x_j] = E[p_j/(1-p_i)]`` is taken for ``w_j/(1-w_i)`` with ``w = E[p]``, and the residual of
    ``L_i`` for zero.

    Attributes:
        weights: ``w``, ``(…, n)``.
        others: ``1 - w_i``, as a sum of the other weights.
        top: whether ``i`` has the largest weight.
    """

    weights: Tensor
    others: Tensor
    top: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> Odds:
        """The map with weights ``softmax(logits)``."""
        weights = torch.softmax(logits, -1)
        top = torch.zeros_like(weights, dtype=torch.bool)
        top = top.scatter(-1, weights.argmax(-1, keepdim=True), True)
        rest = torch.where(top, 0, weights).sum(-1, keepdim=True)
        others = torch.where(top, rest, 1 - weights).clamp_min(_LEAST)
        return cls(weights, others, top)

    def apply(self, x: Tensor) -> Tensor:
        """``x_i - Σ_{j≠i} w_j x_j / (1 - w_i)``, which is ``(x_i - Σ_j w_j x_j)/(1 - w_i)``.

        The second form loses digits where ``w_i`` is near 1, so the largest has the first.

        Returns:
            A tensor of the logits' shape.
        """
        scale = 1 / self.others
        average = (x * self.weights).sum(-1, keepdim=True)
        rest = (x * torch.where(self.top, 0, self.weights)).sum(-1, keepdim=True)
        return x * torch.where(self.top, 1, scale) - torch.where(self.top, rest, average) * scale

    def squared(self, v: Tensor) -> Tensor:
        """The same with squared coefficients, for independent logits."""
        share = v * self.weights.square()
        total = share.sum(-1, keepdim=True)
        rest = torch.where(self.top, 0, share).sum(-1, keepdim=True)
        return v + torch.where(self.top, rest, total - share) / self.others.square()

    def mean(self, logits: Tensor, var: Tensor) -> Tensor:
        """``E[x_i - L_i]`` where the weights are ``softmax(logits)`` and ``var`` its variance.

        ``log(w/(1-w)) - var (1-2w)/2``, so that to second order the expected sigmoid is ``w``.

        Returns:
            A tensor of the logits' shape.
        """
        return (
            torch.log_softmax(logits, -1)
            - self.others.log()
            - 0.5 * var * (self.others - self.weights)
        )


def odds(mean: Tensor, variance: Callable[[Odds], Tensor]) -> tuple[Odds, Tensor]:
    """The linearisation of ``x_i - L_i`` along the last dimension, and its mean.

    With ``d_i = Var(x_i - Σ_j w_j x_j)`` the weights are ``w = softmax(mean + d/2)``: if the logarithms of
    the probabilities were jointly Gaussian, these would be their expectations. ``d`` depends on the
    weights in turn, so the equation is iterated.

    Args:
        mean: of the logits.
        variance: of the map that it is given.

    Returns:
        The map, and the expectation of its result.
    """
    logits = mean
    found = Odds.of(logits)
    for step in range(_STEPS):
        tilted = mean + 0.5 * variance(found) * found.others.square()
        logits = tilted if step == 0 else 0.5 * (tilted + logits)
        found = Odds.of(logits)
    return found, found.mean(logits, variance(found))


def mean_log_sum(mean: Tensor, apart: Tensor, second: Tensor) -> Tensor:
    """``E[log Σ e^x]`` along the last dimension, as if the sum were log-normal.

    Args:
        mean: of the logits.
        apart: ``Var(x_i - Σ_j w_j x_j)``.
        second: the variance of what is not linear in ``log Σ e^x``, ``(…, 1)``.

    Returns:
        A tensor ``(…, 1)``.
    """
    return torch.logsumexp(mean + 0.5 * apart, -1, keepdim=True) - 0.5 * torch.log1p(second)


@working_precision
def brief_sigmoid(mean: Tensor, var: Tensor) -> Moments:
    """``1/(1+e^{-x})`` to five digits for σ up to 1.5, by 12 Gauss-Hermite nodes; exact beyond."""

    def narrow(m: Tensor, v: Tensor) -> Moments:
        nodes, weights = tensors(_RULE, m)
        centre = torch.sigmoid(m)
        values = torch.sigmoid(m.unsqueeze(-1) + root(v).unsqueeze(-1) * nodes)
        differences = values - centre.unsqueeze(-1)
        first = differences @ weights
        gain = (values - values.square()) @ weights
        return Moments(centre + first, gain, differences.square() @ weights - first * first)

    narrow_enough = (var < 2.25) & (var > 4e-4)
    return piecewise(narrow_enough, narrow, sigmoid, mean, var, safe=((0.0, 1.0), (0.0, 0.0)))


def out_of_reach(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Which logits along the last dimension are too far below the largest to count, as masked ones are.

    Returns:
        The mask, and for each row a number that has no weight either.
    """
    reach = _REACH * root(torch.where(var > 0, var, 0)).detach()
    floor = (mean - reach).amax(-1, keepdim=True) - _NIL
    return mean + reach < floor, floor


# ------------------------------------------------------------ independent logits


def softmax(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of softmax along ``dim``; same shapes as the logits'."""
    if mean.ndim == 0 or mean.shape[dim] <= LONG:
        return _of_odds(sigmoid, torch.softmax, mean, var, dim)
    return _of_odds(_probabilities, torch.softmax, mean, var, dim)


def _probabilities(mean: Tensor, var: Tensor) -> Moments:
    result = brief_sigmoid(mean, var)
    return result._replace(mean=result.mean / result.mean.sum(-1, keepdim=True))


def log_softmax(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of log-softmax along ``dim``."""
    return _of_odds(logsigmoid, torch.log_softmax, mean, var, dim)


def logsumexp(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``log Σ e^x`` along the last dimension."""
    dtype = mean.dtype
    if dtype in HALF:
        value, spread = logsumexp(mean.float(), var.float())
        return value.to(dtype), spread.to(dtype)
    levels = _sums(*_within_reach(mean, var))
    value, spread = levels[-1][0].squeeze(-1), levels[-1][1].squeeze(-1)
    certain = (var == 0).all(-1)
    return torch.where(certain, torch.logsumexp(mean, -1), value), spread


def _of_odds(
    function: Callable[[Tensor, Tensor], Moments],
    plain: Callable[[Tensor, int], Tensor],
    mean: Tensor,
    var: Tensor,
    dim: int,
) -> tuple[Tensor, Tensor]:
    """The moments of ``function(x_i - L_i)``, which is ``plain(x)``."""
    if mean.ndim == 0:
        return plain(mean, dim), torch.zeros_like(var)
    dtype = mean.dtype
    if dtype in HALF:
        value, spread = _of_odds(function, plain, mean.float(), var.float(), dim)
        return value.to(dtype), spread.to(dtype)
    whole = mean.movedim(dim, -1)
    m, v = _within_reach(whole, var.movedim(dim, -1))
    if m.shape[-1] > LONG:
        linear, centre = odds(m, lambda found: found.squared(v))
        result = function(centre, linear.squared(v))
    else:
        rest = _rest(m, v)
        result = function(m - rest[0], v + rest[1])
    # nothing is random, or the logit is masked
    certain = (v == 0).all(-1, keepdim=True) | (whole == -torch.inf)
    value = torch.where(certain, plain(whole, -1), result.mean)
    spread = torch.where(certain, 0, result.var)
    return value.movedim(-1, dim).contiguous(), spread.movedim(-1, dim).contiguous()


def _within_reach(mean: Tensor, var: Tensor) -> Marginal:
    outside, floor = out_of_reach(mean, var)
    return torch.where(outside, floor, mean), torch.where(outside, 0, var)


def logaddexp(a: Marginal, b: Marginal) -> Marginal:
    """Mean and variance of ``log(eᵃ + eᵇ)`` of two independent Gaussians."""
    dtype = a[0].dtype
    if dtype in HALF:
        value, spread = logaddexp(*((m.float(), v.float()) for m, v in (a, b)))
        return value.to(dtype), spread.to(dtype)
    return _add(a, b)


def _add(a: Marginal, b: Marginal) -> Marginal:
    return sharp_union(softplus, a, b)


def _sums(m: Tensor, v: Tensor) -> list[Marginal]:
    """``log Σ e^x`` over pairs, over pairs of pairs, and so on to the whole row."""
    count = m.shape[-1]
    size = 1 << max(count - 1, 0).bit_length()
    padded = torch.nn.functional.pad(m, (0, size - count), value=_NOTHING)
    levels: list[Marginal] = [(padded, torch.nn.functional.pad(v, (0, size - count)))]
    while levels[-1][0].shape[-1] > 1:
        a, b = levels[-1]
        levels.append(_add((a[..., 0::2], b[..., 0::2]), (a[..., 1::2], b[..., 1::2])))
    return levels


def _rest(m: Tensor, v: Tensor) -> Marginal:
    """Every ``L_i``, from one balanced tree, up and down."""
    levels = _sums(m, v)
    rest: Marginal = (torch.full_like(levels[-1][0], _NOTHING), torch.zeros_like(levels[-1][1]))
    for sums in reversed(levels[:-1]):
        sibling = (_swap_pairs(sums[0]), _swap_pairs(sums[1]))
        outer = (rest[0].repeat_interleave(2, -1), rest[1].repeat_interleave(2, -1))
        rest = _add(outer, sibling)
    count = m.shape[-1]
    return rest[0][..., :count], rest[1][..., :count]


def _swap_pairs(tensor: Tensor) -> Tensor:
    return tensor.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
