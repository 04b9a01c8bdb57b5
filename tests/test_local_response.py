"""Local response normalisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import uaprop as ua

from .cases import constant
from .oracles import jacobian_std, unequal


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch", "adjoint", "hybrid"])
@pytest.mark.parametrize("size", [1, 3])
def test_local_response_norm_where_numerator_and_denominator_cancel(size: int, method: str) -> None:
    def call(x: Any) -> Any:
        return F.local_response_norm(x, size, 1.0, 0.5, 2.0)

    x = unequal(8 * constant(1, 3, 4), 3e-3)
    y = ua.propagate(call, x, method=method)
    torch.testing.assert_close(y.std, jacobian_std(call, x), rtol=0.02, atol=0)
