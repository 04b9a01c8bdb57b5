"""Operations that take a list of tensors, some of them random."""

from __future__ import annotations

import torch

from .cases import constant
from .oracles import unequal


def test_lists_of_tensors_are_taken_as_torch_takes_them() -> None:
    x, y = unequal(constant(3)), constant(2)
    rows, columns = torch.meshgrid([x, y], indexing="ij")
    torch.testing.assert_close(rows.var, x.var.unsqueeze(1).expand(3, 2))
    torch.testing.assert_close(columns, y.expand(3, 2))
    first, second = torch.atleast_2d([x, y])
    assert first.shape == (1, 3)
    torch.testing.assert_close(second, y.unsqueeze(0))
    assert torch.atleast_1d(x[0]).shape == (1,)


def test_parts_of_a_grid_that_are_not_random_stay_plain() -> None:
    x, y = unequal(constant(3)), constant(2, 1)
    first, second = torch.broadcast_tensors(x, y)
    assert first.shape == second.shape == (2, 3)
    assert isinstance(second, torch.Tensor)


def test_numbers_that_are_not_finite_are_replaced_and_not_random() -> None:
    x = unequal(constant(3))
    masked = torch.where(torch.tensor([True, False, True]), x, float("inf"))
    y = masked.nan_to_num(posinf=7.0)
    torch.testing.assert_close(y.loc[1], torch.tensor(7.0, dtype=torch.float64))
    torch.testing.assert_close(y.var, x.var * torch.tensor([1.0, 0.0, 1.0]))
