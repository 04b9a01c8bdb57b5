"""Cases of functions of what is positive: roots, logarithms, quotients."""

from __future__ import annotations

from typing import Any

import torch

from uaprop.rules.ratio import positive_power

from .table import Table, constant, like

T = Table()


def _far(x: Any) -> Any:
    """At least six deviations above zero."""
    return 0.25 * x + 3


def _either_side(x: Any) -> Any:
    """The same, and as far below zero in every other column."""
    return _far(x) * like(torch.tensor([1.0, -1.0, 1.0]), x)


for _name, _label, _call in (
    ("sqrt", "", lambda x: torch.sqrt(_far(x))),
    ("sqrt", "method", lambda x: _far(x).sqrt()),
    ("rsqrt", "", lambda x: torch.rsqrt(_far(x))),
    ("reciprocal", "", lambda x: _far(x).reciprocal()),
    ("log", "", lambda x: torch.log(_far(x))),
    ("log2", "", lambda x: _far(x).log2()),
    ("log10", "", lambda x: torch.log10(_far(x))),
    ("log1p", "", lambda x: torch.log1p(_far(x) - 1)),
    ("pow", "fraction", lambda x: _far(x) ** 1.5),
    ("pow", "inverse", lambda x: torch.pow(_far(x), -2)),
    ("div", "constant", lambda x: 2.0 / _far(x)),
    ("div", "tensor", lambda x: like(constant(4, 2, 3), x) / _far(x)),
    ("div", "quotient", lambda x: x[:2] / _far(x[2:])),
    ("reciprocal", "signs", lambda x: _either_side(x).reciprocal()),
    ("pow", "signs", lambda x: _either_side(x) ** -2),
    ("pow", "odd", lambda x: _either_side(x) ** -3),
    ("div", "signs", lambda x: -2.0 / _either_side(x)),
    ("div", "quotient-signs", lambda x: x[:2] / _either_side(x[2:])),
):
    _shape = (4, 3) if "quotient" in _label else (2, 3)
    T.add(_name, _call, _shape, "positive", label=_label, tolerance=0.025)

T.add("power_by_its_making", lambda x: positive_power(x.square().sum(-1), 0.5), (2, 8), "positive",
      tolerance=0.02)  # fmt: skip
T.add("power_by_its_making", lambda x: positive_power(x.square().sum(-1), -0.5), (2, 16), "positive",
      label="inverse", tolerance=0.03)  # fmt: skip
