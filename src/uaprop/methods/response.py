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
from ..numerics.moments import HALF, root
from ..provenance import Provenance, StandardError
from .answer import answer, blocks, joined, shares
from .arguments import Arguments, is_gaussian
from .batch_independence import BatchItems, default_chunk, refusal
from .jacobian import mixes
from .linear_part import LinearPart, main_directions, row_by_row

__all__ = ["Residual", "Scheme", "chosen", "respond", "stacked_output"]

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_JACOBIAN_ELEMENTS = 2**28  # the largest Jacobian that is computed
_DENSE_ELEMENTS = 2**24  # the largest dense covariance that is formed


@dataclass(frozen=True)
class Residual:
    """What a stack of passes says beyond the linear response, for each batch element.

    Attributes:
        mean: the answer's mean, ``(batch, outputs)``.
        factors: ``(stack, batch, outputs)``, their sum of squares is the covariance of what is not linear;
            None if nothing is known of it.
        mean_error: standard error of the mean.
        var_error: standard error of the variance.
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
    """

    method: str
    options: Mapping[str, Any]
    carry: Callable[[Tensor, Tensor | None], Any]
    taken: Callable[[Any], tuple[Tensor, Tensor | None] | None]
    residual: Callable[[Tensor, Tensor | None, Tensor], Residual]
    rows: int
    rank: int | None = None


def stacked_output(value: Any) -> tuple[Tensor, Tensor] | None:
    """Mean and stack of an output that carries one, as probes and draws do."""
    return (value.loc, value.cov.values) if is_gaussian(value) else None


@torch.inference_mode(False)  # derivatives are taken whatever mode the caller is in
def respond(
    scheme: Scheme,
    model: Callable[..., Any],
    arguments: Arguments,
    draw: Callable[[bool], Sequence[Tensor | None]] | None,
    outputs: Sequence[int] | None,
    chunk: int | None,
) -> Any:
    """Run a scheme over the batch, piece by piece.

    Args:
        scheme: the method.
        model: any callable on tensors.
        arguments: what it is called with.
        draw: gives deviations of every random argument, ``(stack, *shape)``, the same for all items of a
            batch (True) or independent ones; None if the method has no stack.
        outputs: which outputs of each batch element are wanted, counted in its flattened answer.
        chunk: batch elements at a time; None for all.

    Returns:
        The model's answer, in Gaussians.

    Raises:
        ValueError: if the batch is to be cut but its elements influence each other, or there are too many
            outputs.
    """
    batch, items = arguments.batch, BatchItems(model, arguments)
    elements = scheme.rows * sum(x.numel() for x in arguments.gaussians)
    size = chunk if chunk is not None else default_chunk(items, elements)
    if chunk is not None and batch is not None and chunk < batch and not items.are_independent:
        raise ValueError(refusal(chunk))
    stacks: Sequence[Tensor | None] = [None] * len(arguments.gaussians)
    if draw is not None:
        stacks = draw(items.are_independent)
    pieces, lengths = [], []
    for part, piece in arguments.pieces(size):
        uncut = part == slice(None)  # then there may be no batch dimension at all
        cut = [s if s is None or uncut else s[:, part] for s in stacks]
        try:
            pieces.append(_piece(scheme, model, piece, cut, outputs, piece.batch == batch))
            lengths.append(piece.batch or 0)
        except _BatchMixed:
            if chunk is not None:
                raise ValueError(refusal(chunk)) from None
            again = stacks if draw is None else draw(False)
            return _piece(scheme, model, arguments, again, outputs, True)
    if len(pieces) == 1:
        return pieces[0]
    return pytree.tree_map(functools.partial(joined, lengths), *pieces, is_leaf=is_gaussian)


class _BatchMixed(Exception):
    """Batch elements influence each other."""


def _piece(
    scheme: Scheme,
    model: Callable[..., Any],
    arguments: Arguments,
    stacks: Sequence[Tensor | None],
    outputs: Sequence[int] | None,
    whole: bool,
) -> Any:
    """Some batch elements; ``whole`` if they are all there are."""
    gaussians = arguments.gaussians
    with torch.enable_grad(), only_by_inputs():
        leaves = [x.loc.detach().clone().requires_grad_() for x in gaussians]
        carried = [scheme.carry(leaf, stack) for leaf, stack in zip(leaves, stacks, strict=True)]
        found = arguments.run(model, carried)
    batch = arguments.batch

    def finish(value: Any) -> Any:
        taken = scheme.taken(value)
        if taken is None:
            return value
        mean, stack = taken
        together = batch is None or mean.ndim < 2 or mean.shape[0] != batch
        if not together:
            with contextlib.suppress(_BatchMixed):
                return _output(scheme, gaussians, leaves, stacks, mean, stack, outputs, False)
        if not whole:
            raise _BatchMixed
        return _output(scheme, gaussians, leaves, stacks, mean, stack, outputs, True)

    return pytree.tree_map(finish, found, is_leaf=is_gaussian)


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
        stack = stack.reshape(len(stack), *lines.shape)
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
    unexplained = None if stack is None else stack - part.response(stacks)
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
    # In the output's dtype; half precision could not hold the variances.
    dtype = var.dtype if mean.dtype in HALF else mean.dtype
    error = None
    if found.mean_error is not None and found.var_error is not None:
        std_error = found.var_error / (2 * root(var)).clamp_min(torch.finfo(var.dtype).tiny)
        errors = (e.reshape(final).to(dtype) for e in (found.mean_error, std_error))
        error = StandardError(*errors)
    return answer(
        found.mean.reshape(final).to(dtype),
        var.reshape(final).to(dtype),
        None if dense is None else dense.to(dtype),
        Provenance(scheme.method, scheme.options),
        error,
        shares(part, leaves, together),
    )


def chosen(outputs: Sequence[int], count: int, device: torch.device) -> Tensor:
    """The numbers of the outputs that are wanted, out of ``count``.

    Returns:
        Numbers from 0 on.

    Raises:
        TypeError: if they are no whole numbers.
        ValueError: if there is no such output.
    """
    try:
        numbers = torch.as_tensor(outputs, device=device)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0, device="cpu")
    if numbers.ndim != 1 or numbers.numel() == 0 or numbers.dtype not in _WHOLE:
        raise TypeError(f"outputs must be a list of whole numbers, not {outputs!r}")
    if int(numbers.min()) < -count or int(numbers.max()) >= count:
        raise ValueError(f"outputs={list(outputs)}: a batch element has only {count} outputs")
    return numbers % count


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
