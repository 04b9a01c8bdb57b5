"""Maxima in sliding windows: in pieces or at once, whatever the order in memory, the same numbers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from uaprop.numerics import halved, windows
from uaprop.numerics.maximum import larger, tournament
from uaprop.numerics.windows import Pooling, largest_in_windows

POOLINGS = {
    "overlapping": ((3, 3), (2, 2), (1, 1), (1, 1), False),
    "uneven": ((2, 3), (1, 2), (1, 0), (2, 1), False),
    "to the end": ((3, 2), (2, 3), (1, 1), (1, 2), True),
    "wide padding": ((4, 5), (1, 3), (2, 2), (1, 1), True),
    "apart": ((2, 2), (2, 2), (0, 0), (1, 1), False),
    "gaps": ((2, 1), (3, 2), (1, 0), (1, 1), False),
}
every_pooling = pytest.mark.parametrize("name", POOLINGS)


def given(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return mean, torch.rand(shape, generator=generator, dtype=torch.float64)


@every_pooling
@pytest.mark.parametrize("piece", [1, 40, 2**18])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pieces_and_layouts(
    name: str, piece: int, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooling = Pooling(*POOLINGS[name])
    mean, var = given(2, 3, 9, 8)
    whole = windows._largest(mean, var, pooling.windows(mean.shape))
    monkeypatch.setattr(windows, "_PIECE", piece)
    moved = [t.contiguous(memory_format=layout) for t in (mean, var)]
    found = largest_in_windows(*moved, pooling)
    for part, expected in zip(found, whole, strict=True):
        assert part.is_contiguous(memory_format=layout)
        torch.testing.assert_close(part, expected, rtol=1e-12, atol=1e-12, check_stride=False)


@pytest.mark.parametrize("piece", [1, 2**18])
def test_pictures_are_halved_without_copies(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pooling = Pooling(*POOLINGS["overlapping"])
    mean, var = given(3, windows._VECTOR, 6, 8)
    mean[0, 0, :4] = -torch.inf
    var[0, 1] = 0
    expected = largest_in_windows(mean, var, pooling)
    runs = []

    def looped(function: Any, takes: str, tensors: list[Tensor]) -> Any:
        runs.append(takes)
        return function(*tensors)

    monkeypatch.setattr(halved, "looped", looped)
    monkeypatch.setattr(windows, "_PIECE", piece)
    moved = [t.contiguous(memory_format=torch.channels_last) for t in (mean, var)]
    found = largest_in_windows(*moved, pooling)
    assert runs == ["ddi"] * 2 * (3 if piece == 1 else 1)
    for part, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-12, atol=1e-12, check_stride=False)


@every_pooling
def test_without_noise_it_is_torchs_own(name: str) -> None:
    pooling = Pooling(*POOLINGS[name])
    mean, _ = given(2, 3, 9, 8)
    mean[0, 0, :5] = -torch.inf
    centre, spread = largest_in_windows(mean, torch.zeros_like(mean), pooling)
    torch.testing.assert_close(centre, pooling.plain(mean), rtol=1e-12, atol=0)
    assert (spread == 0).all()


@pytest.mark.parametrize("name", [name for name in POOLINGS if name not in ("apart", "gaps")])
def test_each_window_by_itself(name: str) -> None:
    """Against windows that are cut out one by one, with the tournament in the same order.

    Windows apart from each other are integrated, see test_extremes.
    """
    pooling = Pooling(*POOLINGS[name])
    mean, var = given(1, 1, 9, 8)
    centre, spread = largest_in_windows(mean, var, pooling)
    sizes = mean.shape[-2:]
    for place in itertools.product(*map(range, centre.shape[-2:])):
        corner = [o * s - p for o, s, p in zip(place, *pooling[1:3], strict=True)]
        axes: list[list[int]] = [
            [c + d * k for k in range(n)]
            for c, d, n in zip(corner, pooling.dilation, pooling.kernel, strict=True)
        ]

        def element(i: int, j: int) -> tuple[Tensor, Tensor]:
            if 0 <= i < sizes[0] and 0 <= j < sizes[1]:
                return mean[0, 0, i, j], var[0, 0, i, j]
            return torch.tensor(-1e30).double(), torch.tensor(0.0).double()

        columns: list[Any] = [tournament([element(i, j) for i in axes[0]]) for j in axes[1]]
        m, v = tournament(columns)
        torch.testing.assert_close(centre[0, 0][place], m, rtol=1e-10, atol=0)
        torch.testing.assert_close(spread[0, 0][place], v, rtol=1e-10, atol=0)


def test_gradients_take_the_same_way() -> None:
    pooling = Pooling(*POOLINGS["wide padding"])
    mean, var = (t.requires_grad_() for t in given(1, 2, 5, 4))
    assert torch.autograd.gradcheck(lambda m, v: largest_in_windows(m, v, pooling), (mean, var))


def test_the_larger_of_two_with_and_without_gradients() -> None:
    mean, var = given(2, 500)
    var = var**6  # some of them narrow
    var[0, :20] = var[1, 10:30] = 0
    values = larger((mean[0], var[0]), (mean[1], var[1]))
    mean.requires_grad_()
    tracked = larger((mean[0], var[0]), (mean[1], var[1]))
    assert tracked[0].requires_grad
    for value, other in zip(values, tracked, strict=True):
        torch.testing.assert_close(value, other.detach(), rtol=1e-12, atol=1e-15)
