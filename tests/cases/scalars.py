"""Cases of further scalar functions, of two scalars, and of maxima with their indices."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from uaprop.rules.sort import order

from .table import Table, constant, like

T = Table()

for _name, _call in (
    ("erfc", lambda x: torch.erfc(x)),
    ("ndtr", lambda x: torch.special.ndtr(x)),
    ("log_ndtr_", lambda x: torch.special.log_ndtr(x)),
    ("softsign_", lambda x: F.softsign(x)),
    ("atan", lambda x: torch.atan(2 * x)),
):
    T.add(_name, _call, (2, 3), "elementwise")
T.add("logit_", lambda x: x.logit(0.01), (2, 3), "elementwise", label="eps")
for _name, _call in (
    ("asin", lambda x: torch.asin(0.15 * x)),
    ("acos", lambda x: (0.15 * x + 0.2).acos()),
    ("tan", lambda x: torch.tan(0.1 * x - 3)),
    ("logit_", lambda x: torch.logit(0.08 * x + 0.5)),
):
    T.add(_name, _call, (2, 3), "positive", tolerance=0.02)


def _far(x: Any) -> Any:
    return 0.25 * x + 3


T.add("xlogy", lambda x: torch.xlogy(like(constant(2, 3), x), _far(x)), (2, 3), "positive",
      tolerance=0.02)  # fmt: skip
T.add("xlogy", lambda x: torch.xlogy(x[:2], _far(x[2:])), (4, 3), "positive", tolerance=0.02,
      label="random")  # fmt: skip
T.add("xlogy", lambda x: x.xlogy(like(constant(3).abs() + 0.5, x)), (2, 3), label="number")
T.add("logaddexp", lambda x: torch.logaddexp(x, like(constant(2, 1), x)), (2, 3), "elementwise",
      rounds=True)  # fmt: skip
T.add("logaddexp", lambda x: torch.logaddexp(x[:2], x[2:]), (4, 3), "joint", tolerance=1e-6,
      label="random")  # fmt: skip
T.add("logaddexp", lambda x: torch.logaddexp(x, x), (2, 3), label="itself", rounds=True)
T.add("logaddexp2", lambda x: x[:2].logaddexp2(x[2:]), (4, 3), "joint", tolerance=1e-6, rounds=True)
T.add("clamp", lambda x: torch.clamp(x[0], x[1] - 1, x[2] + 1), (3, 4), "joint", tolerance=0.02,
      label="random")  # fmt: skip
T.add("clamp_min", lambda x: x[0].clamp_min(x[1]), (2, 4), "joint", tolerance=1e-9, label="random")
T.add("clamp_max", lambda x: torch.clamp_max(like(constant(4), x), x), (4,), "elementwise",
      label="bound")  # fmt: skip
for _dims in (1, 2, 3):
    _pool = getattr(F, f"max_pool{_dims}d")
    _adaptive = getattr(F, f"adaptive_max_pool{_dims}d")
    _shape = (1, 2, *[4] * _dims)
    T.add(f"max_pool{_dims}d_with_indices", lambda x, p=_pool: p(x, 2, return_indices=True)[0],
          _shape, "joint", tolerance=0.02)  # fmt: skip
    T.add(f"adaptive_max_pool{_dims}d_with_indices",
          lambda x, p=_adaptive: p(x, 2, return_indices=True)[0], _shape, "joint",
          tolerance=0.02)  # fmt: skip

# ------------------------------------------------------------------ sorted values
T.add("sort", lambda x: torch.sort(x, 1, descending=True)[0], (2, 5), "joint", tolerance=1e-4)
T.add("sort", lambda x: x.sort(dim=0, stable=True).values, (3, 2), "joint", tolerance=1e-4,
      label="stable")  # fmt: skip
T.add("msort", lambda x: torch.msort(x), (4, 2), "joint", tolerance=1e-4)
T.add("topk", lambda x: x.topk(2, 1).values, (2, 7), "joint", tolerance=1e-4)
T.add("topk", lambda x: torch.topk(x, 2, 0, largest=False)[0], (5, 2), "joint", tolerance=1e-4,
      label="smallest")  # fmt: skip
T.add("kthvalue", lambda x: torch.kthvalue(x, 2, 1, True)[0], (2, 5), "joint", tolerance=1e-4)
T.add("median", lambda x: x.median(), (3, 2), "joint", tolerance=1e-4)
T.add("median", lambda x: torch.median(x, 1).values, (2, 6), "joint", tolerance=1e-4, label="dim")
T.add("order_of", lambda x: order(x, 1, 1, 3, True), (2, 5), "joint", tolerance=1e-4)
