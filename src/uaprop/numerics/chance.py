"""Random numbers from a seed, in streams of their own.

A user writes ``torch.manual_seed(0)``, makes weights, and propagates with seed 0: from a generator of that
very seed the noise would be the numbers that the weights were made of.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .draws import own_draws

__all__ = ["RandomNumbers", "mixed", "reseeded", "seeded"]

_MASK = 2**64 - 1
_KEYS, _INPUTS = 5, 16  # streams of their own


def mixed(seed: int, stream: int) -> int:
    """A seed for one of several purposes: the finalizer of splitmix64 (Steele, Lea & Flood 2014)."""
    z = (seed + 0x9E3779B97F4A7C15 * (stream + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1  # torch takes 63 bits


def seeded(seed: int, stream: int = 0, device: torch.device | str | None = None) -> torch.Generator:
    """A generator of its own for every seed and purpose."""
    return torch.Generator(device or "cpu").manual_seed(mixed(seed, stream))


class RandomNumbers:
    """Random numbers for an input of a model, and how they depend on the position in a batch.

    By default all elements of a tensor have independent numbers. The *items* of a batch that do not influence
    each other have the same ones instead: then an item's result depends neither on its neighbours nor on its
    position. They have them in another order, each item one step ahead of the one before. So the numbers
    that go together through a model are independent all the same, as long as there are enough of them.

    With keys each item has the numbers that belong to its key.

    Args:
        generator: where they come from; None for torch's own.
        items: whether the first dimension is a batch of such items.
        keyed: a generator for each item, in place of ``items``.
        total: how many tensors will be asked for, if that is known.
        block: how many are made at a time, so that they are the same however many are asked for at a time;
            None to make as many as are asked for.
    """

    def __init__(
        self,
        generator: torch.Generator | None = None,
        *,
        items: bool = False,
        keyed: Sequence[torch.Generator] | None = None,
        total: int | None = None,
        block: int | None = None,
    ) -> None:
        self.generator = generator
        self.items = items and keyed is None
        self.keyed = keyed
        self._total = total
        self._block = block
        self._made = 0
        self._at = 0  # how many of the buffer were given out
        self._buffer: Tensor | None = None
        self._shared: RandomNumbers | None = None

    @classmethod
    def seeded(
        cls,
        seed: int,
        stream: int = 0,
        *,
        items: bool = False,
        keys: Sequence[int] | None = None,
        device: torch.device | None = None,
        total: int | None = None,
        block: int | None = None,
    ) -> RandomNumbers:
        """From a seed, the number of the input, and a key for each item if there are any."""
        own = seed if stream == 0 else mixed(seed, _INPUTS + stream)
        keyed = None
        if keys is not None:
            base = mixed(own, _KEYS)
            keyed = [seeded(base ^ mixed(key, _KEYS), device=device) for key in keys]
        generator = seeded(own, device=device)
        return cls(generator, items=items, keyed=keyed, total=total, block=block)

    @property
    def is_per_item(self) -> bool:
        """Whether the first dimension of a tensor is a batch."""
        return self.items or self.keyed is not None

    @property
    def shared(self) -> RandomNumbers:
        """Numbers that are the same for all items of a batch, in place of each item's own."""
        if self._shared is None:
            self._shared = RandomNumbers(self.generator, total=self._total, block=self._block)
        return self._shared

    def normal(self, count: int, like: Tensor) -> Tensor:
        """The next ``count`` tensors of standard normal numbers, ``(count, *like.shape)``."""
        if self._block is None:
            self._buffer, self._at = self._draw(count, like), 0
        parts: list[Tensor] = []
        missing = count
        while missing > 0:
            if self._buffer is None or self._at == len(self._buffer):
                self._buffer, self._at = self._draw(self._next_block(), like), 0
            taken = min(missing, len(self._buffer) - self._at)
            parts.append(self._ordered(self._buffer, self._at, taken, like))
            self._at += taken
            missing -= taken
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _next_block(self) -> int:
        assert self._block is not None
        left = self._block if self._total is None else max(1, self._total - self._made)
        size = min(self._block, left)
        self._made += size
        return size

    def _draw(self, count: int, like: Tensor) -> Tensor:
        """``(count, *shape)``, of an item alone where all have the same."""

        def draw(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
            size = (count, *shape)
            return torch.randn(size, dtype=like.dtype, device=like.device, generator=generator)

        if self.keyed:
            return torch.stack([draw(like.shape[1:], generator) for generator in self.keyed], 1)
        return draw(like.shape[1:] if self.items else like.shape, self.generator)

    def _ordered(self, numbers: Tensor, start: int, count: int, like: Tensor) -> Tensor:
        part = numbers[start : start + count]
        if not self.items:
            return part
        if len(like) == 1:
            return part.unsqueeze(1)
        rows = torch.arange(start, start + count, device=like.device).unsqueeze(1)
        ahead = torch.arange(len(like), device=like.device)
        return numbers[(rows + ahead) % len(numbers)]

    def bits(self, count: int, shape: Sequence[int]) -> Tensor:
        """``count`` tensors of random bits that broadcast to ``(count, *shape)``."""

        def draw(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
            device = None if generator is None else generator.device
            size = (count, *shape)
            return torch.randint(0, 2, size, generator=generator, device=device, dtype=torch.int8)

        if self.keyed:
            return torch.stack([draw(shape[1:], g) for g in self.keyed], 1)
        return draw((1, *shape[1:]) if self.items else shape, self.generator)


@contextlib.contextmanager
def reseeded(seed: int, stream: int) -> Iterator[None]:
    """Seed torch's own generators, for a model that draws from them; afterwards they are as before."""
    with contextlib.ExitStack() as stack:
        with own_draws():
            stack.enter_context(torch.random.fork_rng())
            if torch.accelerator.is_available():
                torch.manual_seed(mixed(seed, stream))
            else:  # the same, but it takes longer than a small network
                torch.default_generator.manual_seed(mixed(seed, stream))
        try:
            yield
        finally:
            with own_draws():
                stack.close()
