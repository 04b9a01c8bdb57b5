"""RandomNumbers sources that all tensors of a pass share, and the codes that spread noise over them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..numerics.chance import RandomNumbers, mixed, seeded

__all__ = ["Sources", "coded", "decoded", "signed", "signed_by_position"]


class Sources:
    """A set of independent noise sources, each with mean 0 and variance 1; known by identity.

    Args:
        count: how many.
        seed: for the choices a pass makes at random.
        linearised: whether the mean's derivative is the statistical one
            (:mod:`~uaprop.covariance.response`), and nothing else is differentiated.
        items: whether the items of a batch have the same signs.
        keys: a key for each item instead.

    Attributes:
        generator: for choices that are one for the whole pass.
        fresh: for signs of elements; how many it gives depends on the batch.
        noise: for the signs of the inputs.
    """

    __slots__ = ("coded", "count", "fresh", "generator", "linearised", "noise", "seed", "taken")

    def __init__(
        self,
        count: int,
        seed: int = 0,
        linearised: bool = False,
        items: bool = False,
        keys: Sequence[int] | None = None,
    ) -> None:
        self.count = count
        self.seed = seed
        self.generator = seeded(seed)
        self.fresh = seeded(seed, 7)
        self.noise = RandomNumbers.seeded(seed, items=items, keys=keys)
        self.linearised = linearised
        self.coded = False
        self.taken = 0  # codes that are in use

    def state(self) -> tuple[int, int, bool, bool, int]:
        """What it is made of, as plain values; see :meth:`of_state`."""
        return self.count, self.seed, self.linearised, self.coded, self.taken

    @classmethod
    def of_state(cls, count: int, seed: int, linearised: bool, coded: bool, taken: int) -> Sources:
        """Sources like those that the state is of, and independent of them."""
        value = cls(count, seed, linearised)
        value.coded, value.taken = coded, taken
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return restored_sources, self.state()

    def __deepcopy__(self, memo: Any) -> Sources:
        return self  # known by identity: a copy of a random tensor is the same random tensor

    def restart(self) -> None:
        """Make the same choices again, for the next piece of a batch.

        They come from another seed than the signs of the inputs' probes, which they would repeat.
        """
        self.generator.manual_seed(mixed(self.seed, 1))
        self.fresh.manual_seed(mixed(self.seed, 7))

    def partners(self) -> Tensor:
        """For each source another one: nobody is chosen twice.

        Usually the one a few places on. Codes have to stay codes (:func:`_code_maps`).

        Returns:
            The partners' numbers, ``(count,)``.
        """
        step = torch.randint(1, self.count, (), generator=self.generator, device="cpu")
        return self._moved(step, self.count)

    def partners_in(self, other: Sources) -> Tensor:
        """For each source one of a set that is not larger, ``(count,)``."""
        step = torch.randint(0, other.count, (), generator=self.generator, device="cpu")
        return self._moved(step, other.count)

    def _moved(self, step: Tensor, count: int) -> Tensor:
        if self.coded and count & (count - 1) == 0:
            maps = _code_maps(self.count)
            number = torch.randint(0, len(maps), (), generator=self.generator, device="cpu")
            return (maps[number] ^ step) % count
        return (torch.arange(self.count, device="cpu") + step) % count

    def products(self, values: Tensor) -> Tensor:
        """Each source's values times its partner's, ``(count, *shape)``."""
        return values * values[self.partners()]


def restored_sources(*state: Any) -> Sources:
    """Sources from a pickle."""
    return Sources.of_state(*state)


torch.serialization.add_safe_globals([restored_sources])


def signed(std: Tensor, count: int, noise: RandomNumbers) -> Tensor:
    """Independent random signs times ``std / √count``, ``(count, *shape)``.

    The probes ``P`` have ``E[Pᵀ P] = diag(std²)``, and exactly ``std²`` on the diagonal.

    Returns:
        The probes.
    """
    scaled = std * count**-0.5
    return torch.where(noise.bits(count, std.shape).to(std.device).bool(), scaled, -scaled)


def signed_by_position(std: Tensor, count: int, noise: RandomNumbers) -> Tensor:
    """Like :func:`signed`, but neighbours have orthogonal signs: no error where few of them add up.

    Every element has one random sign times the Walsh function of its position's number, the numbers being
    tiled over the last dimensions: with 16 probes over tiles of 4 × 4 pixels, or of 16 in a row. So the
    variance that a small convolution gives to the probes is exact, not only so on average.

    Returns:
        ``(count, *shape)``.
    """
    if count & (count - 1) or std.ndim == 0:
        return signed(std, count, noise)
    where = _tiles(torch.Size((1, *std.shape[1:])) if noise.is_per_item else std.shape, count)
    if noise.keyed is None:
        functions = _functions(where, count, noise.generator)
    else:  # of each item its own: with the same ones, two items would not be independent
        functions = torch.cat([_functions(where, count, each) for each in noise.keyed], 1)
    signs = noise.bits(1, std.shape)[0].to(std.device).bool()
    one = torch.where(signs, std, -std) * count**-0.5
    return functions.to(std.dtype).to(std.device) * one


def _functions(where: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """The Walsh functions of these numbers, ``(count, *where.shape)``.

    They are in random order and with random signs, which change no covariance: else a Walsh function times
    itself some places on would often be another one, and a product of noise not be new.

    Returns:
        Signs, on the CPU.
    """
    numbers = torch.randperm(count, generator=generator, device="cpu").view(-1, 1)
    flipped = torch.randint(0, 2, numbers.shape, generator=generator, device="cpu")
    table = 1 - 2 * (_parity(numbers & torch.arange(count, device="cpu")) ^ flipped)
    return table.to(torch.int8)[:, where]


def _tiles(shape: torch.Size, count: int) -> Tensor:
    """Numbers below ``count``, a power of two, for positions: no two alike if there are enough.

    Else tiled over the last dimensions, the others (batch, channels) each beginning elsewhere.

    Returns:
        Whole numbers, of the shape given.
    """
    if shape.numel() <= count:
        return torch.arange(shape.numel(), device="cpu").view(shape)
    spatial = max(1, len(shape) - 2)
    bits = count.bit_length() - 1
    numbers = torch.zeros(shape, dtype=torch.long, device="cpu")
    for i in range(spatial):  # from the last dimension on
        share = bits // (spatial - i)
        bits -= share
        numbers = numbers + (torch.arange(shape[-1 - i], device="cpu") % (1 << share) << bits).view(
            -1, *[1] * i
        )
    for i, start in zip(range(spatial, len(shape)), (7, 5), strict=False):
        numbers = numbers + start * torch.arange(shape[-1 - i], device="cpu").view(-1, *[1] * i)
    return numbers % count


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
        code = _walsh(count, slice(sources.taken, sources.taken + k))
        sources.coded = True
        sources.taken += k
    else:
        code = 1 - 2 * torch.randint(0, 2, (k, count), generator=sources.generator, device="cpu")
    code = code.to(factors.dtype).to(factors.device) * count**-0.5
    return torch.einsum("kr,k...->r...", code, factors)


def decoded(values: Tensor, sources: Sources) -> Tensor:
    """The factors that :func:`coded` spread over the sources, if they are still in these values."""
    if not sources.coded or values.numel() == 0:
        return values
    code = _walsh(sources.count, slice(sources.taken)).to(values.dtype).to(values.device)
    code = code * sources.count**-0.5
    factors = torch.einsum("kr,r...->k...", code, values)
    rest = torch.einsum("kr,k...->r...", code, factors) - values
    if bool(rest.abs().max() > 1e3 * torch.finfo(values.dtype).eps * values.abs().max()):
        return values
    return factors


def _walsh(count: int, which: slice) -> Tensor:
    """Walsh functions of odd parity, ``(k, count)``."""
    numbers = torch.arange(count, device="cpu")
    odd = numbers[_parity(numbers) == 1][which]
    return 1 - 2 * _parity(odd.unsqueeze(1) & numbers)


@functools.cache
def _code_maps(count: int) -> Tensor:
    """Maps of the sources' numbers that take codes to codes, ``(maps, count)``.

    Numbers are vectors of bits, and with a matrix ``A`` modulo 2 Walsh functions have
    ``h_i(A r) = h_{Aᵀi}(r)``. So the product of the code ``i`` at ``r`` and the code ``j`` at ``A r ⊕ c`` is
    the code ``i ⊕ Aᵀj``, up to a sign. With ``A 1 = 1`` it has even parity, hence is orthogonal to the
    codes of all factors; and the squares ``i ⊕ Aᵀi`` are to differ, so that what a nonlinearity adds to
    independent elements is independent.

    Returns:
        A few of them.
    """
    numbers = torch.arange(count, device="cpu")
    bits = count.bit_length() - 1
    if bits <= 2:  # too few for codes to differ
        return numbers.unsqueeze(0)
    generator = torch.Generator("cpu").manual_seed(count)
    rows = torch.randint(0, count, (128, bits, 1), generator=generator, device="cpu")
    rows = torch.where(_parity(rows) == 1, rows, rows ^ 1)
    places = torch.arange(bits, device="cpu").unsqueeze(1)
    image = (_parity(numbers & rows) << places).sum(1)
    pulled = torch.zeros_like(image)
    for bit in range(bits):
        pulled ^= torch.where(numbers >> bit & 1 == 1, rows[:, bit], 0)
    squares = (numbers ^ pulled)[:, _parity(numbers) == 1].sort(1).values
    differ = (squares.diff(dim=1) > 0).all(1) & (image.sort(1).values == numbers).all(1)
    return image[differ][:8]


def _parity(numbers: Tensor) -> Tensor:
    parity = torch.zeros_like(numbers)
    while bool((numbers > 0).any()):
        parity ^= numbers & 1
        numbers = numbers >> 1
    return parity
