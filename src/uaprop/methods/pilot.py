"""How linear a model is in its noise, from a few samples and two backward passes.

A random combination ``u·f`` of an item's outputs has the derivative ``g`` at the mean. Let ``r`` be the
correlation of ``g·ε`` with ``u·f(x + ε)``, estimated from samples ``ε_i``. ``R²``, the part of the variance
that is linear in the noise, is at least ``|r|`` for a derivative at a typical point: the derivatives
``∇f(x + ε)`` have the average ``J``, and by Poincaré's inequality (Chernoff 1981) the average of ``|∇f|²``
is at least the variance ``V``, in the noise's metric. So the squared cosine between the two is
``V₁/E|∇f|² ≤ V₁/V = R²``, and ``r² ≤ R² · R²``. With outputs in units of their standard deviations, few
combinations stand for all outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from ..numerics.chance import mixed, seeded
from ..numerics.convolve import only_by_inputs
from .arguments import Arguments
from .centred import centred_noise

__all__ = ["PILOT", "Pilot", "explained_share", "pilot_noise"]

PILOT = 10  # samples
_COMBINATIONS = 2
_STREAM = 7  # of random numbers, for no other purpose


@dataclass(frozen=True)
class Pilot:
    """The first samples of a model.

    Attributes:
        stacks: their noise, for every input ``(samples, *shape)``; it has the mean zero.
        results: the model's output for them, every tensor with a new first dimension.
    """

    stacks: list[Tensor]
    results: Any

    def select(self, index: slice | Tensor, batch: int | None) -> Pilot:
        """Of some of the batch's items."""

        def rows(leaf: Any) -> Any:
            of_items = isinstance(leaf, Tensor) and leaf.ndim > 1 and leaf.shape[1] == batch
            return leaf[:, index] if of_items else leaf

        return Pilot([rows(s) for s in self.stacks], pytree.tree_map(rows, self.results))


@torch.no_grad()
def pilot_noise(
    gaussians: Sequence[Gaussian], seed: int, items: bool, keys: Sequence[int] | None
) -> list[Tensor]:
    """Noise of the first samples, for every input ``(samples, *shape)``.

    Args:
        gaussians: the inputs.
        seed: makes it reproducible.
        items: whether items of the batch get the same noise.
        keys: a key for each item instead.

    Returns:
        A stack for each.
    """
    return centred_noise(gaussians, [PILOT], mixed(seed, _STREAM), items, keys)


@torch.inference_mode(False)
def explained_share(
    model: Callable[..., Any],
    arguments: Arguments,
    pilot: Pilot,
    rows: Callable[[Any, bool], Tensor | None],
) -> Tensor | None:
    """An estimate of ``R²`` of each item, from derivatives at the mean.

    Args:
        model: any callable on tensors.
        arguments: its arguments.
        pilot: the first samples.
        rows: the wanted outputs of the model's output, ``(batch, outputs)`` or of a stack of them (True),
            ``(samples, batch, outputs)``.

    Returns:
        ``(batch,)``, between 0 and 1; 1 for items whose outputs do not vary. None if the model has no
        derivative.
    """
    stack = rows(pilot.results, True)
    if stack is None:
        return None
    usable = torch.isfinite(stack).all(0)
    offsets = torch.where(usable, stack - stack.mean(0), 0).double()
    scale = offsets.square().mean(0).sqrt()
    unit = torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1), 0)
    generator = seeded(_STREAM, 2)
    size = (_COMBINATIONS, 1, unit.shape[1])
    combinations = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")
    combinations = combinations.to(unit.device) * unit
    with torch.enable_grad(), only_by_inputs():
        leaves = [x.loc.detach().clone().requires_grad_() for x in arguments.gaussians]
        output = rows(arguments.run(model, [leaf.clone() for leaf in leaves]), False)
        if output is None or not output.requires_grad or output.shape != unit.shape:
            return None
        explained = []
        for u in combinations:
            grads = torch.autograd.grad(
                output, leaves, u.to(output), allow_unused=True, retain_graph=True
            )
            found = torch.zeros(stack.shape[:2], dtype=torch.float64, device=stack.device)
            for grad, noise in zip(grads, pilot.stacks, strict=True):
                if grad is not None:
                    product = (grad.detach() * noise).double()
                    found += product.reshape(len(noise), found.shape[1], -1).sum(2)
            moved = (u * offsets).sum(2)
            power = found.square().sum(0) * moved.square().sum(0)
            both = (found * moved).sum(0).square()
            explained.append(torch.where(power > 0, both / torch.where(power > 0, power, 1), 0))
    # Of samples without any correlation the square is 1/(n - 1) on average (Ezekiel 1930).
    count = len(stack)
    square = 1 - (1 - torch.stack(explained)) * (count - 1) / (count - 2)
    share = square.mean(0).nan_to_num(0).clamp_min(0).sqrt()
    return torch.where((scale > 0).any(1), share, 1)
