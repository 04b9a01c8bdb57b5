"""What every scalar moment function returns, and the two wrappers they share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    "HALF",
    "Moments",
    "folded",
    "in_chunks",
    "in_memory",
    "is_for_inductor",
    "is_transformed",
    "piecewise",
    "reflected",
    "root",
    "scaled",
    "standard",
    "untracked",
    "working_precision",
]


class Moments(NamedTuple):
    """Moments of ``f(x)`` for ``x ~ N(mean, var)``, each of the input's shape.

    ``gain`` is ``E[f'(x)]``. By Stein's lemma ``Cov(f(x), y) = gain · Cov(x, y)`` for jointly
    Gaussian ``x, y``, so it is all that a covariance needs to know of a nonlinearity.
    """

    mean: Tensor
    gain: Tensor
    var: Tensor


MomentFunction = Callable[..., Moments]
HALF = (torch.float16, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)
_CHUNK = 2**13  # elements
_RARE = 8  # one in so many is few


def working_precision(function: MomentFunction) -> MomentFunction:
    """Compute float16 and bfloat16 inputs in float32, and answer in the dtype that was given.

    Args:
        function: takes ``(mean, var, ...)`` and returns :class:`Moments`.

    Returns:
        The same function, safe for half precision; its variance is never negative.
    """

    @functools.wraps(function)
    def wrapped(mean: Tensor, var: Tensor, *args: object, **kwargs: object) -> Moments:
        dtype = mean.dtype
        half = dtype in HALF
        if half:
            mean, var = mean.float(), var.float()
        result = function(mean, var, *args, **kwargs)
        result = result._replace(var=result.var.clamp_min(0))
        return Moments(*(t.to(dtype) for t in result)) if half else result

    return wrapped


def widened(x: Tensor) -> Tensor:
    """In float32 what is in half precision, whose numbers do not reach down to small variances."""
    return x.float() if x.dtype in HALF else x


def root(var: Tensor) -> Tensor:
    """``√v`` with a zero gradient, not an infinite one, at ``v = 0``; NaN stays NaN."""
    positive = ~(var <= 0)
    return torch.where(positive, torch.where(positive, var, 1).sqrt(), 0)


def standard(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """The deviation and the distance from zero in deviations, safe at zero variance.

    Where ``v = 0``
    the deviation is 0 *with zero gradient* (the derivative of a root is infinite there), and ``z``
    is ±1e10, so that every tail probability is exactly 0.

    Returns:
        ``(std, z)`` with ``std = √v`` and ``z = mean/std``, limited to ±1e10.
    """
    positive = var > 0
    root = torch.where(positive, var, 1).sqrt()
    ratio = (mean / root).clamp(-1e10, 1e10)
    sign = torch.where(mean > 0, 1e10, -1e10).to(mean.dtype)
    return torch.where(positive, root, 0), torch.where(positive, ratio, sign)


def folded(x: Tensor, positive: Tensor) -> Tensor:
    """``-|x|``, with the slope that belongs to the side ``positive`` says, also at zero.

    The derivative of ``abs`` at 0 is 0 in torch, which would be the wrong gradient of a function that is
    put together from two halves there.

    Returns:
        A tensor of ``x``'s shape, not positive.
    """
    return torch.where(positive, -x, x)


def scaled(x: Tensor, factor: float) -> Tensor:
    """``factor · x``, finite for finite ``x``."""
    largest = torch.finfo(x.dtype).max
    return (factor * x).clamp(-largest, largest)


def _lazily(*tensors: Tensor) -> bool:
    """Whether the values may be looked at: on a CPU, and not while the program is being traced."""
    return not torch.compiler.is_compiling() and all(
        t.is_cpu and not torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors
    )


def is_transformed() -> bool:
    """Whether the program is being traced, or runs inside a transform of ``torch.func``."""
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack()
    )


def in_memory(*tensors: Tensor, also: Sequence[str] = ()) -> bool:
    """Whether these are values in this computer's memory: not traced, not transformed, on a CPU.

    Args:
        *tensors: the tensors.
        also: the types of devices that count as well.

    Returns:
        True if all are.
    """
    if is_transformed() or forward_ad._current_level >= 0:
        return False
    for t in tensors:  # noqa: SIM110, asked for every operation, and all() takes longer; so does device.type
        if type(t) not in _PLAIN or not (t.is_cpu or t.device.type in also):
            return False
    return True


def untracked(*tensors: Tensor) -> bool:
    """Whether these are values and nothing more, so that work on them may be done in place.

    Returns:
        Not while the program is being traced, and not where a derivative of them is recorded.
    """
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return not recorded and in_memory(*tensors)


def is_for_inductor(*tensors: Tensor) -> bool:
    """Whether ``torch.compile`` is recording these, without gradients and for this process."""
    return (
        torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    )


def piecewise(
    condition: Tensor,
    here: MomentFunction,
    elsewhere: MomentFunction,
    mean: Tensor,
    var: Tensor,
    *bounds: Tensor,
    safe: tuple[tuple[float, float], tuple[float, float]],
    whole: bool = False,
) -> Moments:
    """Two formulas, each for its own region: ``here`` where ``condition`` holds.

    In eager mode on a CPU every formula is computed only on the elements that need it. Where
    values cannot be looked at (a trace, another device) both are computed everywhere and chosen
    from, each fed the harmless ``safe`` point ``(mean, var)`` outside its region, so that neither
    values nor gradients from there can leak in. ``bounds`` are further arguments, of the mean's shape.

    In eager mode a formula for nearly all elements gets all of them, with ``safe`` in place of the few
    others: to pick out most elements takes longer than most formulas. Both get them in chunks, but for
    ``elsewhere`` if it takes them as a ``whole``.

    Returns:
        The moments, of the mean's shape.
    """
    if _lazily(mean, var):
        if not mean.shape == var.shape == condition.shape:
            condition, mean, var, *bounds = torch.broadcast_tensors(condition, mean, var, *bounds)
        arguments = (mean, var, *bounds)
        inner = functools.partial(in_chunks, here)
        outer = elsewhere if whole else functools.partial(in_chunks, elsewhere)
        few, size = int(torch.count_nonzero(condition)), condition.numel()
        if few == size:
            return inner(*arguments)
        if few == 0:
            return outer(*arguments)
        other = ~condition
        if _RARE * few <= size:
            return _mostly(outer, inner, condition, safe[1], *arguments)
        if _RARE * (size - few) <= size:
            return _mostly(inner, outer, other, safe[0], *arguments)
        inside = inner(*(t[condition] for t in arguments))
        outside = outer(*(t[other] for t in arguments))
        return Moments(
            *(
                torch.zeros_like(mean).masked_scatter(condition, a).masked_scatter(other, b)
                for a, b in zip(inside, outside, strict=True)
            )
        )
    (m_in, v_in), (m_out, v_out) = safe
    inside = here(torch.where(condition, mean, m_in), torch.where(condition, var, v_in), *bounds)
    outside = elsewhere(
        torch.where(condition, m_out, mean), torch.where(condition, v_out, var), *bounds
    )
    return Moments(*(torch.where(condition, a, b) for a, b in zip(inside, outside, strict=True)))


def _mostly(
    usual: MomentFunction,
    rare: MomentFunction,
    rarely: Tensor,
    safe: tuple[float, float],
    mean: Tensor,
    var: Tensor,
    *bounds: Tensor,
) -> Moments:
    """One formula everywhere, and another at the few places that ``rarely`` marks."""
    places = rarely.reshape(-1).nonzero().squeeze(1)
    found = rare(*(t.reshape(-1)[places] for t in (mean, var, *bounds)))
    m, v = safe
    whole = usual(torch.where(rarely, m, mean), torch.where(rarely, v, var), *bounds)
    return Moments(
        *(
            a.reshape(-1).index_copy(0, places, b).view(mean.shape)
            for a, b in zip(whole, found, strict=True)
        )
    )


def in_chunks(function: MomentFunction, *arguments: Tensor, size: int = _CHUNK) -> Moments:
    """A function of tensors of one shape, in pieces that stay in the processor's cache.

    A quadrature holds dozens of values for each element at a time.

    Returns:
        The function's moments, of the arguments' shape.
    """
    shape = arguments[0].shape
    if not _lazily(*arguments) or shape.numel() <= size:
        return function(*arguments)
    pieces = [
        function(*part)
        for part in zip(*(t.reshape(-1).split(size) for t in arguments), strict=True)
    ]
    return Moments(*(torch.cat(column).view(shape) for column in zip(*pieces, strict=True)))


def reflected(function: MomentFunction, mean: Tensor, var: Tensor) -> Moments:
    """Moments of an ``f`` with ``f(x) = x + f(-x)`` from its moments at ``-|mean|``.

    Softplus, SiLU, GELU and hard-swish are of that form. On the left they are small, so nothing
    large cancels there, and on the right ``f`` is the identity plus the same small function:
    ``Var f(x) = v (1 - 2 g) + Var f(-x)``, with ``g`` the gain at ``-|mean|``.

    Returns:
        The moments, of the mean's shape.
    """
    right = mean > 0
    left = function(folded(mean, right), var)
    return Moments(
        torch.where(right, mean + left.mean, left.mean),
        torch.where(right, 1 - left.gain, left.gain),
        torch.where(right, var * (1 - 2 * left.gain) + left.var, left.var),
    )
