"""Reductions over rows of which some elements, or all, are masked: infinite and not random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import uaprop as ua

from .cases import constant
from .oracles import jacobian_std, unequal

INF = float("inf")
MASK = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])
OTHER = constant(3, 3, seed=5)
CALLS: dict[str, Callable[[Any], Any]] = {
    "masked.amax": lambda x: torch.masked.amax(x, 1, mask=MASK),
    "masked.amin": lambda x: torch.masked.amin(x, 1, mask=MASK),
    "masked.logsumexp": lambda x: torch.masked.logsumexp(x, 1, mask=MASK),
    "amax, infinite": lambda x: torch.where(MASK, x, INF).amax(0),
    "maximum": lambda x: torch.maximum(
        torch.where(MASK, x, -INF), torch.where(MASK, x.flip(0), -INF)
    ),
    "minimum": lambda x: torch.minimum(torch.where(MASK, x, INF), x.flip(0)),
    "logsumexp, infinite": lambda x: torch.where(MASK, x, INF).logsumexp(0),
    "softmax": lambda x: torch.where(MASK, x, -INF).softmax(1),
    "softmin": lambda x: F.softmin(torch.where(MASK, x, INF), 1),
    "log_softmax": lambda x: torch.where(MASK, x, -INF).log_softmax(1),
}


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch", "adjoint", "hybrid"])
@pytest.mark.parametrize("name", CALLS)
def test_masked_rows_have_torchs_value_and_leave_the_others_alone(name: str, method: str) -> None:
    call = CALLS[name]
    x = unequal(constant(3, 3), 1e-3)
    y = ua.propagate(call, x, method=method)
    expected = call(x.loc)
    torch.testing.assert_close(y.loc, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    finite = torch.isfinite(expected)
    assert torch.count_nonzero(y.var[~finite]) == 0
    torch.testing.assert_close(y.std[finite], jacobian_std(call, x)[finite], rtol=0.01, atol=1e-7)


@pytest.mark.parametrize("name", CALLS)
def test_masked_rows_have_finite_gradients(name: str) -> None:
    x = unequal(constant(3, 3))
    mean, var = x.loc.clone().requires_grad_(), x.var.clone().requires_grad_()
    y = CALLS[name](ua.Gaussian(mean, var))
    finite = torch.isfinite(y.loc)
    (y.loc[finite].sum() + y.var[finite].sum()).backward()
    for leaf in (mean, var):
        assert leaf.grad is None or torch.isfinite(leaf.grad).all()
