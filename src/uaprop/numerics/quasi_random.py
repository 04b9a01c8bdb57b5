"""Quasi-random normal numbers: scrambled Sobol' points in place of random ones, for few noise sources.

The points of a net fill the unit cube more evenly than random ones do, so that the average of a function that
depends on few coordinates at a time has a smaller error. The direction numbers are those of Joe & Kuo (2008),
as torch has them. Each *replicate* is a net that is scrambled independently (Owen 1995, 1998): every
dimension's digits by a random linear map and a random shift, which has the same variance and is cheaper than
nested permutations (Matoušek 1998, Owen 2003). Every single point is then uniform in the cube, so that
averages are unbiased; and how they differ from replicate to replicate tells their error (L'Ecuyer & Lemieux
2002).

The scrambling is done here, not by ``SobolEngine(scramble=True)``, whose first dimensions are scrambled
otherwise if there are more of them: an item's numbers would depend on how many sources its neighbours have.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from .chance import RandomNumbers, mixed, seeded

__all__ = ["MOST_SOURCES", "QuasiRandomNumbers", "Replicates", "ScrambledNets"]

MOST_SOURCES: int = SobolEngine.MAXDIM
"""Dimensions that there are direction numbers for, 21,201."""

_BITS: int = SobolEngine.MAXBIT  # binary digits of a point
_STREAM, _KEYED, _ORDER = 11, 12, 13  # streams of their own
_AT_ONCE = 2**16  # numbers made at a time


class Replicates:
    """How many independent scramblings there are of how many points.

    Larger nets are worth more than the same points in more nets: a variance needs all pairs of sources to be
    spread evenly, which of ten takes some hundred points. But the error is known from the replicates alone,
    and four are the fewest for which Student's distribution has a variance. With 128 points each, eight are
    as good.

    Args:
        samples: points in all, at least 16.

    Raises:
        ValueError: if they cannot be divided.
    """

    def __init__(self, samples: int) -> None:
        self.count = 8 if samples >= 1024 else 4
        if samples % self.count:
            up = samples + -samples % self.count
            raise ValueError(
                f"qmc=True takes {self.count} scrambled nets of samples/{self.count} points, and {samples} "
                f"samples cannot be divided; take {up}, or best a power of two"
            )
        self.points = samples // self.count


class ScrambledNets:
    """Points for all noise sources of all inputs of a model, one dimension for each source.

    The sources of an input are known when its numbers are asked for the first time, if only for none of them;
    :meth:`allot` gives dimensions to all. Those that all items of a batch share are first, those of an item
    by itself follow. In an input the largest have the first dimensions, which are the best, and what has no
    variance has none.

    Args:
        replicates: their number and size.
        seed: makes them reproducible.
        items: whether the inputs are batches of items that do not influence each other. They have the same
            points: an item's result depends neither on its neighbours nor on its position.
        keys: a key for each item instead, for scramblings of its own. In a model in which items do influence
            each other the same dimensions of two items must not go together, scrambled or not: there each
            item has its points in a random order of its own (Latin supercube sampling, Owen 1998).
    """

    def __init__(
        self, replicates: Replicates, seed: int, items: bool, keys: Sequence[int] | None
    ) -> None:
        self.replicates = replicates
        self.keys = keys
        self.per_item = items or keys is not None
        self.reordered = keys is not None and not items
        self.dimensions = 0
        self.digits = max(1, (replicates.points - 1).bit_length())
        self._seed = mixed(seed, _STREAM)
        self._members: list[QuasiRandomNumbers] = []
        self._plain = torch.zeros((0, self.digits), dtype=torch.long, device="cpu")

    def numbers(self) -> QuasiRandomNumbers:
        """The numbers of the next input."""
        return QuasiRandomNumbers(self)

    def register(self, member: QuasiRandomNumbers) -> None:
        """Take note of an input with sources."""
        self._members.append(member)

    def allot(self) -> None:
        """Give dimensions to all sources.

        Raises:
            ValueError: if there are too many.
        """
        shared = [member for member in self._members if not member.per_item]
        own = [member for member in self._members if member.per_item]
        start: Tensor | int = 0
        for member in (*shared, *own):
            start = member.place(start)
        last = torch.as_tensor(start, device="cpu")
        self.dimensions = int(last.max()) if last.numel() else 0
        if self.dimensions > MOST_SOURCES:
            whose = "an item" if self.per_item else "these inputs, taken together,"
            raise ValueError(
                f"quasi-random points have {MOST_SOURCES} dimensions at most, and {whose} has "
                f"{self.dimensions} noise sources; leave qmc=True out"
            )
        self._plain = _direction_numbers(self.dimensions, self.digits)

    def scrambling(self, replicate: int, keyed: bool) -> tuple[Tensor, Tensor]:
        """Direction numbers and shifts of a replicate, as integers of 30 binary digits.

        A random linear map takes digit ``d`` of a direction number to itself and random digits after it.

        Returns:
            ``(dimensions, digits)`` and ``(dimensions,)``; keyed with the keys as a dimension before.
        """
        size = (self.dimensions, self.digits + 1)
        rows = [
            torch.randint(2**_BITS, size, generator=seeded(seed, replicate), device="cpu")
            for seed in self._seeds(keyed)
        ]
        random = torch.stack(rows) if keyed else rows[0]
        scrambled = torch.zeros_like(random[..., 1:])
        for digit in range(self.digits):
            place = _BITS - 1 - digit
            column = (random[..., digit + 1 : digit + 2] >> (digit + 1)) | (1 << place)
            scrambled ^= (self._plain >> place & 1) * column
        return scrambled, random[..., 0]

    def order(self, replicate: int) -> Tensor:
        """A random order of the points for each key, ``(keys, points)``."""
        return torch.stack(
            [
                torch.randperm(
                    self.replicates.points,
                    generator=seeded(mixed(seed, _ORDER), replicate),
                    device="cpu",
                )
                for seed in self._seeds(keyed=True)
            ]
        )

    def _seeds(self, keyed: bool) -> list[int]:
        if not keyed:
            return [self._seed]
        return [self._seed ^ mixed(key, _KEYED) for key in self.keys or ()]


class QuasiRandomNumbers(RandomNumbers):
    """Normal numbers for one input from :class:`ScrambledNets`, a replicate after the other.

    Args:
        nets: of all inputs.
        per_item: whether an item's numbers are its own; by default as the nets say.
    """

    def __init__(self, nets: ScrambledNets, per_item: bool | None = None) -> None:
        super().__init__()
        self.per_item = nets.per_item if per_item is None else per_item
        self._nets = nets
        self._keyed = self.per_item and nets.keys is not None
        self._scales: Tensor | None = None
        self._where = torch.zeros(0, dtype=torch.long, device="cpu")  # each element's dimension
        self._dimensions = slice(0, 0)  # all of them
        self._given = 0
        self._net: _Net | None = None  # the replicate that the next ones belong to

    @property
    def shared(self) -> RandomNumbers:
        """Numbers that are the same for all items of a batch, in place of each item's own."""
        if self._shared is None:
            self._shared = QuasiRandomNumbers(self._nets, per_item=False) if self.per_item else self
        return self._shared

    def normal(self, count: int, like: Tensor) -> Tensor:
        """The next ``count`` tensors of standard normal numbers, ``(count, *like.shape)``.

        Args:
            count: how many.
            like: what the numbers will be multiplied with; where that is zero they are of no use, and have
                no dimension.

        Returns:
            The numbers.
        """
        if self._scales is None:
            scales = like.detach().to("cpu", torch.float64)
            batch = len(like) if self.per_item else 1
            self._scales = scales.reshape(batch, like.numel() // max(batch, 1))
            self._nets.register(self)
        parts: list[Tensor] = []
        left = count
        while left > 0:
            replicate, first = divmod(self._given, self._nets.replicates.points)
            if self._net is None or first == 0:
                self._net = self._open(replicate)
            part = self._spread(self._net.take(first, left))
            parts.append(part)
            self._given += len(part)
            left -= len(part)
        numbers = torch.cat(parts) if parts else torch.zeros(0, *self._where.shape, device="cpu")
        shape = (count, *like.shape)
        if self._keyed or not self.per_item or len(self._where) == len(like):
            return numbers.reshape(shape).to(like.device, like.dtype)
        one = numbers.reshape(count, 1, *like.shape[1:]).to(like.device, like.dtype)
        return one.expand(shape)

    def place(self, start: Tensor | int) -> Tensor | int:
        """Give every source a dimension, the largest the first ones.

        Args:
            start: the first that is free, for each item if it is a tensor, ``(batch,)``.

        Returns:
            The first that is free afterwards, as ``start``.
        """
        scales = self._scales
        assert scales is not None
        rank = scales.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        random = scales > 0
        begin = torch.as_tensor(start, device="cpu").expand(len(scales))
        where = torch.where(random, rank + begin.unsqueeze(1), -1)
        end = begin + random.sum(1)
        if random.any():
            self._dimensions = slice(int(where[random].min()), int(where.max()) + 1)
        where = (where - self._dimensions.start).clamp_min(0)
        if not self._keyed and len(where) > 1 and bool((where == where[0]).all()):
            where = where[:1]
        self._where = where
        return end if self.per_item else int(end)

    def _open(self, replicate: int) -> _Net:
        """A replicate in the dimensions of this input."""
        nets, part = self._nets, self._dimensions
        directions, shift = nets.scrambling(replicate, self._keyed)
        order = nets.order(replicate) if self._keyed and nets.reordered else None
        return _Net(directions[..., part, :], shift[..., part], nets.replicates.points, order)

    def _spread(self, points: Tensor) -> Tensor:
        """To the elements, ``(count, batch, elements)``, with one for the batch if all have the same."""
        where = self._where
        if points.shape[-1] == 0:  # nothing is random
            return torch.zeros(points.shape[-2], *where.shape, device="cpu", dtype=torch.float64)
        if not self._keyed:
            return points[:, where]
        index = where.unsqueeze(1).expand(-1, points.shape[1], -1)
        return points.gather(2, index).transpose(0, 1)


class _Net:
    """One replicate: its points as normal numbers, made some at a time.

    Args:
        directions: scrambled direction numbers, ``(dimensions, digits)``; with keys as a dimension before.
        shift: ``(dimensions,)``, likewise.
        size: how many points there are.
        order: which point is when, ``(keys, points)``, if not in their own order.
    """

    def __init__(self, directions: Tensor, shift: Tensor, size: int, order: Tensor | None) -> None:
        self._directions, self._shift, self._size, self._order = directions, shift, size, order
        self._start = 0
        self._made = self._points(0, 0)

    def take(self, first: int, most: int) -> Tensor:
        """Points from the ``first`` on, ``most`` or fewer: ``(count, dimensions)``, or with keys before."""
        at = first - self._start
        if not 0 <= at < self._made.shape[-2]:
            count = max(1, _AT_ONCE // max(1, self._shift.numel()))
            self._made = self._points(first, min(count, self._size - first))
            self._start, at = first, 0
        return self._made[..., at : at + most, :]

    def _points(self, first: int, count: int) -> Tensor:
        if self._order is None:
            index = torch.arange(first, first + count, device="cpu")
        else:
            index = self._order[:, first : first + count]
        shift = self._shift.unsqueeze(-2)
        points = shift.expand(*shift.shape[:-2], count, shift.shape[-1]).clone()
        for digit in range(self._directions.shape[-1]):
            bit = (index >> digit & 1).unsqueeze(-1)
            points ^= bit * self._directions[..., digit].unsqueeze(-2)
        normal: Tensor = torch.special.ndtri((points.double() + 0.5) * 2.0**-_BITS)
        return normal


def _direction_numbers(dimensions: int, digits: int) -> Tensor:
    """The first direction numbers of each dimension, ``(dimensions, digits)``, as integers of 30 digits.

    Point ``n`` of torch's sequence is the sum, modulo 2, of those that belong to the ones in the Gray code of
    ``n``; the Gray code of ``2ᵇ⁺¹ - 1`` has the single one ``b``.

    Returns:
        The direction numbers.
    """
    if dimensions == 0:
        return torch.zeros((0, digits), dtype=torch.long, device="cpu")
    engine = SobolEngine(dimensions)
    found = []
    for digit in range(digits):
        engine.fast_forward(2 ** (digit + 1) - 1 - engine.num_generated)
        found.append(engine.draw(1, dtype=torch.float64)[0])
    return (torch.stack(found, 1) * 2.0**_BITS).long()
