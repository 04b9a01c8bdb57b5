"""Random numbers from a seed that nobody else draws from.

A user writes ``torch.manual_seed(0)``, makes weights, and propagates with seed 0: from a generator of that
very seed the noise would be the numbers that the weights were made of.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["mixed", "reseeded", "seeded"]

_MASK = 2**64 - 1


def mixed(seed: int, stream: int) -> int:
    """A seed for one of several purposes: the finalizer of splitmix64 (Steele, Lea & Flood 2014)."""
    z = (seed + 0x9E3779B97F4A7C15 * (stream + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1  # torch takes 63 bits


def seeded(seed: int, stream: int = 0, device: torch.device | str | None = None) -> torch.Generator:
    """A generator of its own for every seed and purpose."""
    return torch.Generator(device or "cpu").manual_seed(mixed(seed, stream))


@contextlib.contextmanager
def reseeded(seed: int, stream: int) -> Iterator[None]:
    """Have torch's own generators begin anew, for a model that draws from them; afterwards they go on."""
    with torch.random.fork_rng():
        if torch.accelerator.is_available():
            torch.manual_seed(mixed(seed, stream))
        else:  # the same, but it takes longer than a small network
            torch.default_generator.manual_seed(mixed(seed, stream))
        yield
