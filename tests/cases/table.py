"""What a case is: an operation as a function of a random input, and how good its moments are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """An operation on one random tensor."""

    rule: str
    call: Callable[[Any], Any]
    shape: tuple[int, ...] = (2, 3)
    kind: str = "linear"  # linear (and select), elementwise, joint, bilinear, noise, query
    label: str = ""
    tolerance: float = 0.0  # for approximate moments: allowed relative error of the std
    rounds: bool = False  # composed of other operations, so torch's own result to rounding only

    @property
    def name(self) -> str:
        return f"{self.rule}-{self.label}" if self.label else self.rule


@dataclass
class Table:
    cases: list[Case] = field(default_factory=list)

    def add(self, rule: str, call: Callable[[Any], Any], *args: Any, **kwargs: Any) -> None:
        self.cases.append(Case(rule, call, *args, **kwargs))


def constant(*shape: int, seed: int = 7) -> Tensor:
    """A fixed constant without pattern; no random numbers, which vmap would draw anew."""
    count = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return 1.7 * torch.sin(12.9898 * count + seed).view(shape)


def like(value: Tensor, x: Any) -> Tensor:
    """A constant in the input's dtype."""
    return value.to(x.dtype)
