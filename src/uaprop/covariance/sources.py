"""Noise sources that all tensors of a pass share, and the codes that spread noise over them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Sources", "coded", "signed"]


class Sources:
    """A set of independent noise sources, each with mean 0 and variance 1; known by identity.

    Args:
        count: how many.
        seed: for the choices a pass makes at random.
        linearised: whether the mean's derivative is the statistical one
            (:mod:`~uaprop.covariance.response`), and nothing else is differentiated.
    """

    __slots__ = ("coded", "count", "generator", "linearised", "seed", "taken")

    def __init__(self, count: int, seed: int = 0, linearised: bool = False) -> None:
        self.count = count
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.linearised = linearised
        self.coded = False
        self.taken = 0  # codes that are in use

    def restart(self) -> None:
        """Make the same choices again, for the next piece of a batch.

        They come from another seed than the signs of the inputs' probes, which they would repeat.
        """
        self.generator.manual_seed(self.seed ^ 0x5DEECE66D)

    def partners(self) -> Tensor:
        """For each source another one: nobody gets itself, nobody is chosen twice.

        Usually the one a few places on. Codes have to stay codes, and Walsh functions have
        ``h(r ⊕ c) = ± h(r)``, so there the numbers are combined bit by bit.

        Returns:
            The partners' numbers, ``(count,)``.
        """
        step = torch.randint(1, self.count, (), generator=self.generator)
        return _moved(torch.arange(self.count), step, self.count, self.coded)

    def partners_in(self, other: Sources) -> Tensor:
        """For each source one of a set that is not larger, ``(count,)``."""
        step = torch.randint(0, other.count, (), generator=self.generator)
        return _moved(torch.arange(self.count), step, other.count, self.coded)

    def products(self, values: Tensor) -> Tensor:
        """Each source's values times its partner's, ``(count, *shape)``."""
        count = len(values)
        partners = self.partners()
        step = int(partners[0])
        if self.coded or values.requires_grad:
            return values * values[partners]
        result = torch.empty_like(values)  # without a copy of the partners' values
        torch.mul(values[: count - step], values[step:], out=result[: count - step])
        torch.mul(values[count - step :], values[:step], out=result[count - step :])
        return result


def signed(std: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Independent random signs times ``std / √count``, ``(count, *shape)``.

    The probes ``P`` have ``E[Pᵀ P] = diag(std²)``, and exactly ``std²`` on the diagonal.

    Returns:
        The probes.
    """
    signs = torch.randint(
        0, 2, (count, *std.shape), generator=generator, device=generator.device, dtype=torch.int8
    )
    scaled = std * count**-0.5
    return torch.where(signs.to(std.device).bool(), scaled, -scaled)


def coded(factors: Tensor, sources: Sources) -> Tensor:
    """Factors ``(k, *shape)`` spread over the sources with the same covariance ``Fᵀ F``.

    With ``2k`` sources or more, a power of two, each factor gets a Walsh function of odd parity: these are
    orthogonal, so nothing changes; and a product of two of them has even parity, so what a
    nonlinearity adds is orthogonal to what it was made from. More factors than that get random
    signs, which are orthogonal on average. No code is given twice: inputs are independent.

    Returns:
        ``(count, *shape)``.
    """
    k, count = factors.shape[0], sources.count
    if 2 * (sources.taken + k) <= count and count & (count - 1) == 0:
        numbers = torch.arange(count)
        odd = numbers[_parity(numbers) == 1][sources.taken : sources.taken + k]
        code = 1 - 2 * _parity(odd.unsqueeze(1) & numbers)
        sources.coded = True
        sources.taken += k
    else:
        code = 1 - 2 * torch.randint(0, 2, (k, count), generator=sources.generator)
    code = code.to(factors.dtype).to(factors.device) * count**-0.5
    return torch.einsum("kr,k...->r...", code, factors)


def _moved(numbers: Tensor, step: Tensor, count: int, coded: bool) -> Tensor:
    if coded and count & (count - 1) == 0:
        return (numbers ^ step) % count
    return (numbers + step) % count


def _parity(numbers: Tensor) -> Tensor:
    parity = torch.zeros_like(numbers)
    while bool((numbers > 0).any()):
        parity ^= numbers & 1
        numbers = numbers >> 1
    return parity
