"""Rows of a Jacobian by reverse-mode differentiation, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.fx.experimental.symbolic_shapes  # noqa: F401, torch.autograd.grad would when first called
from torch import Tensor

from ..errors import UnsupportedOperation

__all__ = ["both_ways", "jacobian", "mixes", "pullback", "vjp"]


def jacobian(output: Tensor, inputs: Sequence[Tensor], rows: int) -> list[Tensor]:
    """``∂ output[b, k] / ∂ input[b]`` for every input.

    Args:
        output: ``(batch, outputs)``; element ``b`` depends on element ``b`` of the inputs only. A batch
            of one may depend on all of the inputs.
        inputs: leaves of the graph.
        rows: how many outputs are differentiated at once.

    Returns:
        ``(batch, outputs, elements)`` for each input.
    """
    batch, outputs = output.shape
    elements = [x.numel() // max(batch, 1) for x in inputs]
    if not output.requires_grad or output.numel() == 0:
        return [x.new_zeros(batch, outputs, n) for x, n in zip(inputs, elements, strict=True)]
    units = torch.eye(outputs, dtype=output.dtype, device=output.device)
    found: list[list[Tensor]] = [[] for _ in inputs]
    for part in units.split(rows):
        cotangents = part.unsqueeze(1).expand(len(part), batch, outputs)
        grads = pullback(output, inputs, cotangents)
        for column, grad, x, n in zip(found, grads, inputs, elements, strict=True):
            filled = x.new_zeros(len(part), *x.shape) if grad is None else grad
            column.append(filled.reshape(len(part), batch, n).transpose(0, 1))
    return [torch.cat(column, 1) for column in found]


def mixes(
    output: Tensor,
    inputs: Sequence[Tensor],
    cotangent: Tensor | None = None,
    pulled: Sequence[Tensor | None] | None = None,
) -> bool:
    """Whether batch elements influence each other.

    If they do not, a factor on one element's cotangent is a factor on its own derivative and on nobody
    else's. The factors are different powers of two, with which rounding commutes.

    Args:
        output: ``(batch, …)``.
        inputs: leaves of its graph, ``(batch, …)``.
        cotangent: one that every output has a part in, of ``output``'s shape; made here if it is None.
        pulled: the vector-Jacobian products with it, if they are known.

    Returns:
        True if some do, as far as their derivatives tell.
    """
    batch = output.shape[0]
    if batch < 2 or output.numel() == 0 or not output.requires_grad:
        return False
    generator = torch.Generator("cpu").manual_seed(batch)
    if cotangent is None:
        cotangent = torch.rand(output.shape, generator=generator, device="cpu").to(output) + 0.5
    powers = torch.randperm(batch, generator=generator, device="cpu").to(output) % 16 - 8

    def scaled(tensor: Tensor) -> Tensor:
        return tensor * torch.exp2(powers).view(batch, *[1] * (tensor.ndim - 1))

    if pulled is None:
        pulled = vjp(output, inputs, cotangent)
    for once, again in zip(pulled, vjp(output, inputs, scaled(cotangent)), strict=True):
        if once is None or again is None or once.numel() == 0:
            continue
        expected = scaled(once).flatten(1)
        tolerance = 1e3 * torch.finfo(output.dtype).eps * expected.abs().amax(1)
        if bool(((again.flatten(1) - expected).abs().amax(1) > tolerance).any()):
            return True
    return False


def vjp(output: Tensor, inputs: Sequence[Tensor], cotangent: Tensor) -> Sequence[Tensor | None]:
    """The vector-Jacobian product with one cotangent.

    Returns:
        One for each input, None if the output does not depend on it.

    Raises:
        UnsupportedOperation: if there is no derivative.
        OutOfMemoryError: if there is no memory for it.
    """
    try:
        return torch.autograd.grad(output, inputs, cotangent, retain_graph=True, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UnsupportedOperation(
            "torch.autograd.grad",
            reason=f"the model's derivative cannot be taken ({str(error).partition(chr(10))[0]})",
            remedy='Use method="samples", which takes none.',
        ) from error


def pullback(
    output: Tensor, inputs: Sequence[Tensor], cotangents: Tensor
) -> Sequence[Tensor | None]:
    """Vector-Jacobian products with a stack of cotangents, together where that is faster."""
    if output.device.type != "cpu":  # there torch's batched convolution backward is a loop anyway
        try:
            return torch.autograd.grad(
                output,
                inputs,
                cotangents,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
        except RuntimeError:
            pass  # not every derivative can be vectorised; a real error comes up again below
    columns = zip(*(vjp(output, inputs, row) for row in cotangents), strict=True)
    return [None if column[0] is None else torch.stack(column) for column in columns]


def both_ways(
    output: Tensor, inputs: Sequence[Tensor], cotangents: Tensor
) -> tuple[list[Tensor | None], Callable[[Sequence[Tensor]], Tensor]]:
    """Vector-Jacobian products with a stack of cotangents, and a function for those in the other direction.

    A vector-Jacobian product is linear in its vector; its derivative by that vector is the Jacobian
    itself, so differentiating backwards twice goes forwards. The first cotangent's product is taken for that.

    Returns:
        ``(stack, *shape)`` for each input, None if the output does not depend on it; and what takes stacks of
        tangents, one for each input, to ``(stack, *output's shape)``.
    """
    if not output.requires_grad:
        return [None] * len(inputs), lambda tangents: _nothing(output, tangents)
    with torch.enable_grad():
        vector = cotangents[0].detach().clone().requires_grad_()
        traced = torch.autograd.grad(output, inputs, vector, create_graph=True, allow_unused=True)
    known = [i for i, grad in enumerate(traced) if grad is not None and grad.requires_grad]
    others = (
        pullback(output, inputs, cotangents[1:]) if len(cotangents) > 1 else [None] * len(inputs)
    )

    def joined(first: Tensor | None, rest: Tensor | None) -> Tensor | None:
        if first is None:
            return None
        own = first.detach().unsqueeze(0)
        return own if rest is None else torch.cat([own, rest])

    def pushforward(tangents: Sequence[Tensor]) -> Tensor:
        if not known:
            return _nothing(output, tangents)
        ends = [traced[i] for i in known]
        stacks = zip(*(tangents[i] for i in known), strict=True)
        rows = [torch.autograd.grad(ends, vector, row, retain_graph=True)[0] for row in stacks]
        return torch.stack(rows)

    return [joined(*pair) for pair in zip(traced, others, strict=True)], pushforward


def _nothing(output: Tensor, tangents: Sequence[Tensor]) -> Tensor:
    return output.new_zeros(len(tangents[0]), *output.shape)
