"""The linear response of a network exactly, and whatever is not linear from a stack of passes.

Three methods have this form. Each carries through the model a mean whose derivative is the response
``J`` it believes in, and beside it a stack of deviations: none (``linear``), probes (``adjoint``), draws
(``hybrid``). With a stack's input ``ε_r`` and output ``o_r``, the part that the response does not explain is
``t_r = o_r - J ε_r``, and the answer's covariance is ``J Σ Jᵀ`` plus that of ``t``. The sum
``Σ_h ⟨∂y/∂h, what was added at h⟩`` over all nonlinearities is that same ``t``, because between
them everything is linear; so nothing has to be kept but the stack at the end.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import UnsupportedOperation
from ..gaussian import Gaussian
from ..numerics.convolve import only_by_inputs
from ..numerics.draws import own_draws
from ..numerics.moments import root, widened
from ..provenance import Provenance, StandardError
from .answer import answer, blocks, joined, map_leaves, shares
from .arguments import Arguments, is_gaussian
from .batch_independence import UNSEEN_STATE, BatchItems, default_chunk, refusal
from .control_variate import fitted
from .error_floor import has_nonlinear, not_left, unrounded
from .jacobian import mixes
from .linear_part import LinearPart, main_directions, row_by_row
from .options import chosen
from .pilot import Pilot
from .plain_samples import PlainSamples
from .user_warning import warn_user

__all__ = ["Draw", "Residual", "Scheme", "chosen", "respond", "stacked_output"]

_JACOBIAN_ELEMENTS = 2**28  # the largest Jacobian that is computed
_DENSE_ELEMENTS = 2**24  # the largest dense covariance that is formed
_LIGHT = 16  # plain samples take so much less memory than those with derivatives

Draw = Callable[[Arguments, slice, bool], Sequence[Tensor | None]]


@dataclass(frozen=True)
class Residual:
    """What a stack of passes says beyond the linear response, for each batch element.

    Attributes:
        mean: the answer's mean, ``(batch, outputs)``.
        factors: ``(stack, batch, outputs)``, their sum of squares is the covariance of what is not linear;
            None if nothing is known of it.
        mean_error: standard error of the mean.
        var_error: standard error of the variance, that of the response apart.
    """

    mean: Tensor
    factors: Tensor | None = None
    mean_error: Tensor | None = None
    var_error: Tensor | None = None


@dataclass(frozen=True)
class Scheme:
    """What distinguishes the methods of this form.

    Attributes:
        method: its name.
        options: its options, for the provenance.
        carry: makes what the model runs on from a mean and the deviations that belong to it.
        taken: the mean and the stack (or None) of one of the model's outputs.
        residual: judges mean, unexplained part and linear variances.
        rows: outputs differentiated at once.
        rank: with more outputs than this, the response along as many directions; None for all of it.
        fits: whether the slope of the response is estimated from the stack.
        averaged: how many of the stack the model is run on with derivatives; the others, real samples, pass
            through it as plain tensors. All by default.
        stack: the size of the stack.
    """

    method: str
    options: Mapping[str, Any]
    carry: Callable[[Tensor, Tensor | None], Any]
    taken: Callable[[Any], tuple[Tensor, Tensor | None] | None]
    residual: Callable[[Tensor, Tensor | None, Tensor], Residual]
    rows: int
    rank: int | None = None
    fits: bool = False
    averaged: int | None = None
    stack: int = 0


def stacked_output(value: Any) -> tuple[Tensor, Tensor] | None:
    """Mean and stack of an output that carries one, as probes and draws do."""
    return (value.loc, value.cov.values) if is_gaussian(value) else None


@torch.inference_mode(False)  # derivatives are taken whatever mode the caller is in
def respond(
    scheme: Scheme,
    model: Callable[..., Any],
    arguments: Arguments,
    draw: Draw | None,
    outputs: Sequence[int] | None,
    chunk: int | None,
    pilot: Pilot | None = None,
    items: BatchItems | None = None,
) -> Any:
    """Run a scheme over the batch, piece by piece.

    Args:
        scheme: the method.
        model: any callable on tensors.
        arguments: what it is called with.
        draw: gives noise of every random argument, ``(stack, *shape)``, for a part of the batch: the same
            for all items (True) or independent; None if the method has no stack.
        outputs: which outputs of each batch element are wanted, counted in its flattened answer.
        chunk: batch elements at a time; None for all.
        pilot: samples that the model was already run on, to be counted with the stack's.
        items: what is known of the batch, if anything is.

    Returns:
        The model's answer, in Gaussians.

    Raises:
        ValueError: if the batch is to be cut but its elements influence each other, or there are too many
            outputs.
    """
    if items is not None:
        return _responded(scheme, model, arguments, draw, outputs, chunk, pilot, items)
    for join in (True, False):
        items = BatchItems(model, arguments)
        if not join:
            items.refute()
        result = _responded(scheme, model, arguments, draw, outputs, chunk, pilot, items)
        if items.confirm():
            return result
        if not items.refute():
            break
    warn_user(UNSEEN_STATE)
    return result


def _responded(
    scheme: Scheme,
    model: Callable[..., Any],
    arguments: Arguments,
    draw: Draw | None,
    outputs: Sequence[int] | None,
    chunk: int | None,
    pilot: Pilot | None,
    items: BatchItems,
) -> Any:
    """What :func:`respond` returns, if it is the same for samples that go together."""
    batch = arguments.batch
    stack = max(scheme.rows, scheme.stack // _LIGHT)
    elements = stack * sum(x.numel() for x in arguments.gaussians)
    size = chunk if chunk is not None else default_chunk(items, elements)
    items.check_cut(chunk)
    plain = None
    if scheme.averaged is not None:
        plain = PlainSamples(model, items, scheme.stack - scheme.averaged)

    def drawn(piece: Arguments, part: slice, independent: bool) -> Sequence[Tensor | None]:
        return [None] * len(piece.gaussians) if draw is None else draw(piece, part, independent)

    pieces, lengths = [], []
    for part, piece in arguments.pieces(size):
        stacks = drawn(piece, part, items.are_independent)
        known = pilot if part == slice(None) or pilot is None else pilot.select(part, batch)
        try:
            pieces.append(
                _piece(scheme, model, plain, known, piece, stacks, outputs, piece.batch == batch)
            )
            lengths.append(piece.batch or 0)
        except _BatchMixed:
            if chunk is not None:
                raise ValueError(refusal(chunk)) from None
            stacks = drawn(arguments, slice(None), False)
            return _piece(scheme, model, plain, pilot, arguments, stacks, outputs, True)
    if len(pieces) == 1:
        return pieces[0]
    return pytree.tree_map(functools.partial(joined, lengths), *pieces, is_leaf=is_gaussian)


class _BatchMixed(Exception):
    """Batch elements influence each other."""


def _piece(
    scheme: Scheme,
    model: Callable[..., Any],
    plain: PlainSamples | None,
    pilot: Pilot | None,
    arguments: Arguments,
    stacks: Sequence[Tensor | None],
    outputs: Sequence[int] | None,
    whole: bool,
) -> Any:
    """Some batch elements; ``whole`` if they are all there are."""
    gaussians = arguments.gaussians
    with torch.enable_grad(), only_by_inputs():
        leaves = [x.loc.detach().clone().requires_grad_() for x in gaussians]
        heads = [s if s is None else s[: scheme.averaged] for s in stacks]
        carried = [scheme.carry(leaf, stack) for leaf, stack in zip(leaves, heads, strict=True)]
        found = arguments.run(model, carried)
    batch = arguments.batch
    more: list[Any] = []  # outputs of samples without derivatives
    tails = [s[scheme.averaged :] for s in stacks if s is not None]
    if plain is not None and len(tails[0]) > 0:
        with own_draws():  # also those of the model's dropout, one mask for each sample
            more.append(plain(arguments, tails))
    if pilot is not None:
        more.append(pilot.results)
        stacks = [
            s if s is None else torch.cat([s, own])
            for s, own in zip(stacks, pilot.stacks, strict=True)
        ]

    def finish(value: Any, *others: Any) -> Any:
        taken = scheme.taken(value)
        if taken is None:
            return value
        mean, stack = taken
        if stack is not None and others:
            stack = torch.cat([stack, *others])
        together = batch is None or mean.ndim < 2 or mean.shape[0] != batch
        if not together:
            with contextlib.suppress(_BatchMixed):
                return _output(scheme, gaussians, leaves, stacks, mean, stack, outputs, False)
        if not whole:
            raise _BatchMixed
        return _output(scheme, gaussians, leaves, stacks, mean, stack, outputs, True)

    return map_leaves(finish, found, *more)


def _output(
    scheme: Scheme,
    gaussians: Sequence[Gaussian],
    leaves: Sequence[Tensor],
    stacks: Sequence[Tensor | None],
    mean: Tensor,
    stack: Tensor | None,
    outputs: Sequence[int] | None,
    together: bool,
) -> Gaussian:
    """One of the model's outputs; ``together`` if all its elements may depend on all of the input.

    Returns:
        Its Gaussian.

    Raises:
        _BatchMixed: if they do, and not ``together``.
    """
    vector = mean.ndim < 2
    with torch.enable_grad():  # the caller may have turned gradients off
        flat = mean.reshape(1, -1) if vector else mean.flatten(1)
    shape = (flat.shape[1],) if vector else tuple(flat.shape)
    final = tuple(mean.shape)
    if outputs is not None:
        count = flat.shape[1]
        numbers = chosen(outputs, count, mean.device)
        with torch.enable_grad():
            flat = flat[:, numbers]
        shape = final = (len(numbers),) if vector else tuple(flat.shape)
        if stack is not None:
            stack = stack.reshape(len(stack), len(flat), count)[..., numbers]
    with torch.enable_grad():
        lines = flat.reshape(1, -1) if together else flat
    if stack is not None:
        stack = widened(stack.reshape(len(stack), *lines.shape))
    stacks = [s if s is None else widened(s) for s in stacks]
    if stack is not None and scheme.rank is not None and lines.shape[1] > scheme.rank:
        part = main_directions(lines, leaves, gaussians, stack, scheme.rank)
    elif not together and mixes(lines, leaves):
        part = None
    else:
        _check_size(scheme.method, lines, leaves)
        part = row_by_row(lines, leaves, gaussians, scheme.rows)
    if part is None:
        raise _BatchMixed
    finite = part.finite()
    if finite is not None:  # what has no response is left to the stack
        if stack is None:
            _check_derivative(part, lines)
        part = finite
    unexplained = part_error = None
    if stack is not None and scheme.fits:
        part, unexplained, part_error = fitted(part, stacks, stack)
    elif stack is not None:
        unexplained = stack - part.response(stacks)
    linear = part.variances()
    found = scheme.residual(lines.detach(), unexplained, linear)
    var, factors = linear, found.factors
    if factors is not None:
        var = var + factors.square().sum(0)
    dense = None
    if lines.numel() * lines.shape[1] <= _DENSE_ELEMENTS:
        dense = part.covariance()
        if factors is not None:
            dense = dense + torch.einsum("rbk,rbl->bkl", factors, factors)
        dense = blocks(dense, shape)
    dtype = widened(mean.new_empty(0)).dtype
    error = None
    if found.mean_error is not None and found.var_error is not None:
        var_error = found.var_error
        if part_error is not None:
            var_error = torch.hypot(var_error, part_error)
        std_error = var_error / (2 * root(var)).clamp_min(torch.finfo(var.dtype).tiny)
        mean_error = found.mean_error
        if factors is not None and has_nonlinear(lines):
            unseen = not_left(factors.square().sum(0), lines.detach(), var, len(factors))
            mean_error, std_error = (torch.maximum(e, unseen) for e in (mean_error, std_error))
        errors = (e.to(dtype) for e in (mean_error, std_error))
        error = unrounded(lines.detach(), var, StandardError(*errors), mean.dtype)
        error = StandardError(*(e.reshape(final) for e in error))
    return answer(
        found.mean.reshape(final).to(mean.dtype),
        var.reshape(final).to(dtype),
        None if dense is None else dense.to(dtype),
        Provenance(scheme.method, scheme.options),
        error,
        shares(part, leaves, together),
    )


def _check_derivative(part: LinearPart, lines: Tensor) -> None:
    """Refuse finite outputs whose derivative is not finite, as of a root at zero."""
    bad = torch.stack([~torch.isfinite(row).all(-1) for row in part.rows]).any(0)
    if bool((bad & torch.isfinite(lines.detach())).any()):
        raise UnsupportedOperation(
            "torch.autograd.grad",
            reason="the model's derivative is infinite or NaN at the mean",
            remedy='Use method="hybrid" or "samples".',
        )


def _check_size(method: str, lines: Tensor, leaves: Sequence[Tensor]) -> None:
    elements = lines.shape[1] * sum(leaf.numel() for leaf in leaves)
    if elements > _JACOBIAN_ELEMENTS:
        raise ValueError(
            f"method {method!r} takes one backward pass for each of {lines.shape[1]} outputs, and their "
            f"derivatives would have {elements:.2g} elements; pick some with outputs=[…], make chunk "
            'smaller, or use method="samples" or "sketch"'
        )
