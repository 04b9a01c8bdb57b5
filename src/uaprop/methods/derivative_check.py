"""Whether the derivative that autograd gives of a model is the model's.

``detach``, ``torch.no_grad``, numpy, straight-through estimators and hooks on gradients change what autograd
gives. A method that reads the response off it alone would be wrong, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import UnsupportedOperation
from ..numerics.chance import RandomNumbers, reseeded, seeded
from .arguments import Arguments
from .jacobian import vjp
from .reachable import is_array

__all__ = ["check_derivative"]

_STEPS = (
    5e-2,
    5e-3,
    5e-4,
    5e-5,
)  # in units of the noise, or of a hundredth of the mean if that is more
_PATTERNS = 4  # sums of the outputs that are compared: the plain one, and some with random signs
_TOLERANCE = 0.1  # of the change along a step, up to which autograd is believed
_SAME = 0.5  # by how much two steps may differ, in units of their distance from autograd, to be believed
_ROUNDING = 1e3  # in units of the last digit, below which a change is not looked at
_SAMPLES = 8  # that tell whether outputs without a derivative change
_WIDER = 3.0  # than the noise, to see what seldom happens
_ELEMENTS = 2**16  # of the input, above which two batch elements have to do


def check_derivative(model: Callable[..., Any], arguments: Arguments) -> None:
    """Compare the derivative along a direction of the noise with difference quotients.

    With a step ``h ε`` and ``d = f(m + h ε) - f(m - h ε)``, each output weighted by the inverse of its own
    ``d``, the weighted sums of ``d`` and of ``2 h J ε`` have to agree to a tenth; and so have sums with
    random signs, in units of the root of the number of outputs: errors of opposite sign do not cancel in
    all of them. Where they do not agree, the step may be too large (kinks, curvature), so smaller ones are
    tried, as far as rounding allows. Only if the last two of them say the same, and autograd something
    else, it is refused. If the first step agrees that is two forward passes with gradients, four backward
    passes and two forward passes. Outputs without a derivative must be the same for a few samples.

    Args:
        model: any callable on tensors.
        arguments: its arguments.

    Raises:
        UnsupportedOperation: if autograd's derivative is not the model's, or an output that changes has none.
    """
    elements = sum(x.numel() for x in arguments.gaussians)
    if elements > _ELEMENTS and (arguments.batch or 0) > 2:
        arguments = arguments.cut(slice(0, 2))
    means = [x.loc.detach() for x in arguments.gaussians]
    noise = RandomNumbers.seeded(0, 3, device=means[0].device)
    with torch.no_grad():
        directions = [
            _lengthened(x.cov.deviations(1, noise)[0].detach(), mean)
            for x, mean in zip(arguments.gaussians, means, strict=True)
        ]
    _check_constants(model, arguments, means)
    errors: list[list[float]] = []
    for size in _STEPS:
        steps = [size * direction for direction in directions]
        error = _errors(model, arguments, means, steps)
        if error is None:
            break
        if all(abs(each) <= _TOLERANCE for each in error):
            return
        errors.append(error)
    if len(errors) < 2:
        return  # nothing is known for sure
    sure = [_agree(a, b) for a, b in zip(*errors[-2:], strict=True)]
    if not any(sure):
        return
    if sure[0]:
        found_wrong = f"autograd gives {1 + errors[-1][0]:.3g} times the model's derivative"
    else:
        found_wrong = "autograd's derivative of single outputs is not the model's"
    raise UnsupportedOperation(
        "torch.autograd.grad",
        reason=f"{found_wrong} along the noise; the model detaches something, leaves torch, or defines its "
        "own gradients",
        remedy='Use method="samples", which takes no derivative.',
    )


def _with_gradients(
    model: Callable[..., Any], arguments: Arguments, means: Sequence[Tensor]
) -> tuple[list[Tensor], list[Any]]:
    """The mean as leaves, and all outputs with their graph.

    The graph is of no use any more once the model was run again: it may hold a buffer of the model, which
    is put back before every pass.

    Returns:
        The two.
    """
    with torch.enable_grad():
        leaves = [mean.clone().requires_grad_() for mean in means]
        return leaves, _leaves(model, arguments, [leaf.clone() for leaf in leaves])


def _check_constants(
    model: Callable[..., Any], arguments: Arguments, means: Sequence[Tensor]
) -> None:
    """Refuse outputs that have no derivative and change with the noise, such as ``z > 0`` or an index.

    Seen from a few samples of three times the noise; an output that rarely changes may go unnoticed.

    Args:
        model: any callable on tensors.
        arguments: its arguments.
        means: of its random arguments.

    Raises:
        UnsupportedOperation: if one changes.
    """
    _, outputs = _with_gradients(model, arguments, means)
    if any(isinstance(output, Tensor) and output.is_complex() for output in outputs):
        raise UnsupportedOperation(
            "a complex output", reason="no Gaussian has such values", remedy="Return real tensors."
        )
    constant = [
        i
        for i, output in enumerate(outputs)
        if not (isinstance(output, Tensor) and output.requires_grad)
    ]
    if not constant:
        return
    gaussians = arguments.gaussians
    noise = RandomNumbers.seeded(0, 5, device=gaussians[0].device)
    with torch.no_grad():
        stacks = [x.cov.deviations(_SAMPLES, noise) for x in gaussians]
        for samples in zip(*stacks, strict=True):
            values = [x.loc + _WIDER * each for x, each in zip(gaussians, samples, strict=True)]
            moved = _leaves(model, arguments, values)
            if len(moved) != len(outputs):
                return  # values decide what comes out
            for i in constant:
                if _differ(outputs[i], moved[i]):
                    _refuse_without_derivative(outputs[i])


def _refuse_without_derivative(output: Any) -> NoReturn:
    """Refuse an output that changes with the noise.

    Raises:
        UnsupportedOperation: always.
    """
    if not isinstance(output, Tensor):
        raise UnsupportedOperation(
            f"an output that is a {type(output).__name__}",
            reason="it changes with the noise; only tensors, in tuples, lists and dicts, have a mean "
            "and a variance",
            remedy="Return a tensor.",
        )
    if not output.is_floating_point():
        raise UnsupportedOperation(
            f"an output of {output.dtype}",
            reason="it changes with the noise, and no Gaussian has such values",
            remedy="Return the scores that it was computed from.",
        )
    raise UnsupportedOperation(
        "torch.autograd.grad",
        reason="an output changes with the input, and autograd has no derivative of it; the model "
        "detaches it, leaves torch, or uses an operation that is not differentiable",
        remedy='Use method="samples", which takes no derivative.',
    )


def _differ(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        if type(a) is not type(b):
            return True
        if is_array(a):
            return bool(a.shape != b.shape or ((a != b) & ((a == a) | (b == b))).any())
        plain = isinstance(a, bool | int | float | str | bytes)
        return plain and a != b and not (a != a and b != b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    return not torch.allclose(a, b, equal_nan=True) if a.is_floating_point() else not a.equal(b)


def _agree(a: float, b: float) -> bool:
    """Whether two steps say the same, and both that autograd is wrong."""
    least = min(abs(a), abs(b))
    return least > _TOLERANCE and abs(a - b) <= _SAME * least


def _errors(
    model: Callable[..., Any],
    arguments: Arguments,
    means: Sequence[Tensor],
    steps: Sequence[Tensor],
) -> list[float] | None:
    """How far autograd is off what the model does along a step, relative, for several sums of the outputs.

    Returns:
        An error for the plain sum and for each of those with random signs; None if the change is nothing
        beyond rounding.

    Raises:
        UnsupportedOperation: if autograd has no derivative of an output that changes.
    """
    with torch.no_grad():
        ahead = _outputs(model, arguments, [m + s for m, s in zip(means, steps, strict=True)])
        behind = _outputs(model, arguments, [m - s for m, s in zip(means, steps, strict=True)])
    leaves, outputs = _with_gradients(model, arguments, means)
    found = [v for v in outputs if isinstance(v, Tensor) and v.is_floating_point()]
    if not [v.shape for v in found] == [v.shape for v in ahead] == [v.shape for v in behind]:
        return None  # values decide what comes out
    changes = [(a - b).double() / 2 for a, b in zip(ahead, behind, strict=True)]
    weights = [_weights(c, v.detach()) for c, v in zip(changes, found, strict=True)]
    if any(
        not v.requires_grad and bool((c.abs() > 0).any())
        for v, c in zip(found, changes, strict=True)
    ):
        _refuse_without_derivative(found[0])
    expected = float(sum((w * c).sum() for w, c in zip(weights, changes, strict=True)))
    if not 0 < expected < float("inf"):
        return None
    count = sum(int((w != 0).sum()) for w in weights)
    generator = seeded(0, 4)
    errors = []
    for pattern in range(_PATTERNS):
        signed = weights
        if pattern:
            signed = [w * _random_signs(w, generator) for w in weights]
        wanted = float(sum((w * c).sum() for w, c in zip(signed, changes, strict=True)))
        given = _along(signed, found, leaves, steps)
        errors.append((given - wanted) / expected * (count**0.5 if pattern else 1))
    return errors


def _along(
    weights: Sequence[Tensor],
    found: Sequence[Tensor],
    leaves: Sequence[Tensor],
    steps: Sequence[Tensor],
) -> float:
    """What autograd says that a weighted sum of the outputs changes by along a step."""
    with torch.enable_grad():
        total = sum((w.to(v.dtype) * v).sum() for w, v in zip(weights, found, strict=True))
    if not isinstance(total, Tensor) or not total.requires_grad:
        return 0.0
    grads = vjp(total, leaves, torch.ones_like(total))
    pairs = zip(grads, steps, strict=True)
    return sum(float((g.double() * s).sum()) for g, s in pairs if g is not None)


def _random_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, like.shape, generator=generator, device="cpu").to(like) * 2 - 1


def _lengthened(direction: Tensor, mean: Tensor) -> Tensor:
    """A direction of the noise, of a hundredth of the mean's size at least, to be above rounding."""
    if direction.numel() == 0:
        return direction
    size, least = (t.square().mean().sqrt() for t in (direction, 0.01 * mean))
    return direction * torch.where((size > 0) & (size < least), least / size, 1)


def _leaves(model: Callable[..., Any], arguments: Arguments, values: list[Tensor]) -> list[Any]:
    """The outputs, with the same random numbers each time."""
    with reseeded(0, 3):
        return pytree.tree_leaves(arguments.run(model, values))


def _outputs(model: Callable[..., Any], arguments: Arguments, values: list[Tensor]) -> list[Tensor]:
    """Those of floating point."""
    found = _leaves(model, arguments, values)
    return [v for v in found if isinstance(v, Tensor) and v.is_floating_point()]


def _weights(change: Tensor, value: Tensor) -> Tensor:
    """The inverse of each output's own change; zero where that is rounding."""
    rounding = _ROUNDING * torch.finfo(value.dtype).eps * value.double().abs()
    size = change.abs()
    typical = size.square().mean().sqrt() if size.numel() else size.sum()
    weight = change.sign() / (size + 0.1 * typical).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.where((size > rounding) & change.isfinite(), weight, 0)
