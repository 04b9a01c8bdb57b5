"""Models that are linear where their noise takes them: exact variances for any number of outputs.

For ``f(x + ε) = f(x) + J ε`` the covariance is ``J Σ Jᵀ``. With few outputs that is a backward pass for each
(:mod:`~uaprop.methods.linear`). With many, an image say, outputs depend on few elements each: a forward
derivative along probes ``P`` that are orthogonal on every such neighbourhood gives ``Σ_r (J P_r)²``, the
variances exactly (probing of a sparse matrix; Tang & Saad 2012). Whether the probes were orthogonal enough is
seen from a second set with other signs, which must give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..covariance import Finished, Sources
from ..gaussian import Gaussian
from ..numerics.chance import RandomNumbers, seeded
from ..provenance import Provenance
from ..records import opened
from .arguments import Arguments, is_gaussian
from .jacobian import both_ways
from .linear import linear
from .sketch import probe

__all__ = ["exact_if_linear"]

Corners = tuple[Tensor, Tensor, Tensor, Tensor]

_ROWS = 1024  # outputs of each batch element, up to which there is a backward pass for each
_JACOBIAN_ELEMENTS = 2**26  # of a Jacobian that is formed
_PROBES = (16, 64, 256, 1024)
_STACK_ELEMENTS = 2**26  # of the derivatives along a set of probes
_AGREE = 1e-3  # relative difference of two sets of probes, or of derivative and change, both of them exact
_PAIRS = 4  # of noise, at whose sums the model is tried
_PATTERNS = 3  # sums of the outputs whose derivative is compared with their change


def exact_if_linear(
    model: Callable[..., Any],
    arguments: Arguments,
    outputs: int,
) -> Any:
    """The model's output, in Gaussians, if it is linear over its noise and that is affordable.

    Args:
        model: any callable on tensors.
        arguments: its arguments.
        outputs: how many it has for each batch element.

    Returns:
        The Gaussians; None if the model is not linear, or has too many outputs that depend on too much.
    """
    noise = _noise(arguments)
    corners = _corners(model, arguments, [pairs[0] for pairs in noise])
    if not all(_is_plane(*values) for values in corners):
        return None
    if not _has_its_derivative(model, arguments, corners, [pairs[0, 0] for pairs in noise]):
        return None
    elements = sum(x.numel() for x in arguments.gaussians)
    if outputs <= _ROWS and outputs * elements <= _JACOBIAN_ELEMENTS:
        exact = linear(model, *arguments.filled(arguments.gaussians))
    else:
        exact = _probed(model, arguments)
    if exact is None or not _is_flat(exact, corners):
        return None
    for number in range(1, _PAIRS):  # a kink may be seldom reached
        if not _is_flat(exact, _corners(model, arguments, [pairs[number] for pairs in noise])):
            return None
    return exact


@torch.no_grad()
def _noise(arguments: Arguments) -> list[Tensor]:
    """Pairs of noise ε and δ of every input, ``(pairs, 2, *shape)``."""
    found = []
    for i, x in enumerate(arguments.gaussians):
        numbers = RandomNumbers.seeded(0, 20 + i, device=x.device)
        found.append(x.cov.deviations(2 * _PAIRS, numbers).unflatten(0, (_PAIRS, 2)))
    return found


def _corners(
    model: Callable[..., Any], arguments: Arguments, noise: Sequence[Tensor]
) -> list[Corners]:
    """``f(x)``, ``f(x + ε)``, ``f(x + δ)`` and ``f(x + ε + δ)`` of every output, for noise ε and δ."""
    gaussians = arguments.gaussians
    with torch.no_grad(), torch.random.fork_rng():

        def at(*signs: int) -> list[Tensor]:
            values = [
                x.loc + sum(sign * part for sign, part in zip(signs, parts, strict=True))
                for x, parts in zip(gaussians, noise, strict=True)
            ]
            return _floating(arguments.run(model, values))

        return list(zip(at(0, 0), at(1, 0), at(0, 1), at(1, 1), strict=True))


def _is_plane(f: Tensor, right: Tensor, up: Tensor, both: Tensor) -> bool:
    """Whether ``f(x + ε + δ) - f(x + ε) - f(x + δ) + f(x)`` is next to nothing for the largest output."""
    if not f.shape == right.shape == up.shape == both.shape:
        return False
    if f.numel() == 0:
        return True
    bent = (both - right - up + f).abs()
    moved = torch.maximum((right - f).abs(), (up - f).abs()).amax()
    eps = torch.finfo(f.dtype).eps
    rounding = 32 * eps * torch.stack([t.abs().amax() for t in (f, right, up, both)]).amax()
    return bool((bent <= 1e-4 * moved + rounding).all())


@torch.inference_mode(False)
def _has_its_derivative(
    model: Callable[..., Any],
    arguments: Arguments,
    corners: Sequence[Corners],
    noise: Sequence[Tensor],
) -> bool:
    """Whether autograd's derivative along ε is ``f(x + ε) - f(x)``, but for rounding.

    Sums of all outputs with random signs are compared, each output in units of its own change. What a model
    detaches or computes outside of torch is missing in the derivative.

    Returns:
        True if it is.
    """
    with torch.enable_grad():
        leaves = [x.loc.detach().clone().requires_grad_() for x in arguments.gaussians]
        found = _floating(arguments.run(model, [leaf.clone() for leaf in leaves]))
    generator = seeded(0, 21)
    for _ in range(_PATTERNS):
        wanted = power = 0.0
        weights = []
        for f, right, _, _ in corners:
            change = (right - f).double()
            eps = torch.finfo(f.dtype).eps
            largest = torch.maximum(f.abs(), right.abs()).double()
            largest = largest + (largest.amax() if f.numel() else 0)
            rounding = 8 * eps * largest
            least = 0.1 * change.square().mean().sqrt() if change.numel() else change.sum()
            size = (change.abs() + least + rounding / _AGREE).clamp_min(
                torch.finfo(torch.float64).tiny
            )
            signs = torch.randint(0, 2, f.shape, generator=generator, device="cpu").to(size) * 2 - 1
            weights.append(signs / size)
            wanted += float((weights[-1] * change).sum())
            power += f.numel()
        if len(found) != len(weights):
            return False
        outputs = [v for v in found if v.requires_grad]
        along = [w.to(v.dtype) for v, w in zip(found, weights, strict=True) if v.requires_grad]
        given = 0.0
        if outputs:
            grads = torch.autograd.grad(
                outputs, leaves, along, retain_graph=True, allow_unused=True
            )
            pairs = zip(grads, noise, strict=True)
            given = sum(float((g.double() * n).sum()) for g, n in pairs if g is not None)
        if abs(given - wanted) > 2 * _AGREE * power**0.5 + 1e-9:
            return False
    return True


def _is_flat(exact: Any, corners: Sequence[Corners]) -> bool:
    """Whether that is next to nothing for each output, in units of its own standard deviation.

    A small output that bends goes unnoticed beside a large one. Rounding is that of the output, and a little
    of the largest one of the item, which may be part of the sums before.

    Returns:
        True if it is.
    """
    leaves = pytree.tree_leaves(opened(exact), is_leaf=is_gaussian)
    found = [leaf for leaf in leaves if is_gaussian(leaf) or _is_floating(leaf)]
    for value, corner in zip(found, corners, strict=True):
        if value.numel() == 0:
            continue
        f, right, up, both = corner
        size = torch.stack([t.abs() for t in corner]).amax(0)
        largest = size.flatten(1).amax(1) if f.ndim > 1 else size.amax()
        largest = largest.view(-1, *[1] * (f.ndim - 1)) if f.ndim > 1 else largest
        std = value.cov.var.detach().sqrt() if is_gaussian(value) else 0.0
        rounding = torch.finfo(f.dtype).eps * (32 * size + 8 * largest)
        if not bool(((both - right - up + f).abs() <= 1e-3 * std + rounding).all()):
            return False
    return True


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _floating(result: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(result)
    return [leaf for leaf in leaves if _is_floating(leaf)]


@torch.inference_mode(False)
def _probed(model: Callable[..., Any], arguments: Arguments) -> Any:
    """Exact variances by probes; None if no affordable number of them is enough."""
    gaussians = arguments.gaussians
    with torch.enable_grad():
        leaves = [x.loc.detach().clone().requires_grad_() for x in gaussians]
        found = arguments.run(model, [leaf.clone() for leaf in leaves])
    values, spec = pytree.tree_flatten(found)
    results = []
    for value in values:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            results.append(value)
            continue
        variances = _variances(value, leaves, gaussians)
        if variances is None:
            return None
        var, probes = variances
        told = Provenance("linear", {"probes": probes})
        result = Gaussian._from_covariance(value.detach(), Finished(var, None))
        results.append(result.with_provenance(told))
    return pytree.tree_unflatten(results, spec)


def _variances(
    output: Tensor, leaves: Sequence[Tensor], gaussians: Sequence[Gaussian]
) -> tuple[Tensor, int] | None:
    """``Σ_r (J P_r)²`` from the fewest probes that are enough, and how many."""
    with torch.enable_grad():
        _, pushforward = both_ways(output, leaves, torch.ones_like(output).unsqueeze(0))
    for count in _PROBES:
        if count * (output.numel() + sum(x.numel() for x in gaussians)) > _STACK_ELEMENTS:
            return None
        totals = []
        for seed in (0, 1):
            total = torch.zeros_like(output).detach()
            for i, x in enumerate(gaussians):  # independent of each other
                probes = probe(x, Sources(count, seed)).values
                tangents = [
                    probes if j == i else other.loc.new_zeros(()).expand(count, *other.shape)
                    for j, other in enumerate(gaussians)
                ]
                total = total + pushforward(tangents).detach().square().sum(0)
            totals.append(total)
        first, second = totals
        if torch.allclose(first, second, rtol=_AGREE, atol=1e-9 * float(first.max())):
            return first, count
    return None
