"""Maxima against the integral of their distribution, shrinkages against mpmath, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mpmath import mp
from torch import Tensor

import uaprop as ua
from uaprop.numerics import shrinkage
from uaprop.numerics.largest import largest
from uaprop.numerics.quadrature import legendre

from .oracles import random_input

DOUBLE = torch.float64


def integrated(mean: Tensor, std: Tensor) -> tuple[float, float]:
    """``E[max] - c = ∫ (F̄ above c) - ∫ (F below c)``, in panels between all elements' own places."""
    points = torch.cat([mean + k * std for k in (-9, -5, -3, -1.5, 0, 1.5, 3, 5, 9)]).sort().values
    points = points.clamp_min(float((mean - 9 * std).max()))
    centre = mean.max()
    nodes, weights = torch.tensor(legendre(24), dtype=DOUBLE).unbind(1)
    widths = points.diff().unsqueeze(1)
    t = points[:-1].unsqueeze(1) + widths * nodes
    f = torch.special.ndtr((t.unsqueeze(-1) - mean) / std).prod(-1)
    mass = torch.where(t < centre, -f, 1 - f) * widths * weights
    first, second = mass.sum(), 2 * (mass * (t - centre)).sum()
    return float(centre + first), float(second - first * first)


@pytest.mark.parametrize("count", [3, 4, 9, 16, 17, 40])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 2.0, 5.0])
def test_the_largest_of_several(count: int, spread: float) -> None:
    """Deviations that differ by a factor of e^spread or so; errors in units of the true deviation."""
    generator = torch.Generator().manual_seed(count)
    mean = torch.randn((count, 12), generator=generator, dtype=DOUBLE)
    std = torch.exp(spread * torch.randn((count, 12), generator=generator, dtype=DOUBLE))
    truth = [integrated(m, s) for m, s in zip(mean.unbind(1), std.unbind(1), strict=True)]
    means, variances = torch.tensor(truth, dtype=DOUBLE).unbind(1)
    for dtype in (torch.float64, torch.float32):
        found, var = largest(mean.to(dtype), std.square().to(dtype))
        bound = 5e-4 if spread < 2 else 8e-3
        assert ((found - means).abs() / variances.sqrt()).max() < bound
        assert ((var / variances).sqrt() - 1).abs().max() < bound


def test_constants_among_the_elements() -> None:
    """Beside constants the maximum is a clamp at the largest of them."""
    x = ua.Gaussian(torch.tensor([0.3, -1.0, 2.0, -9.0], dtype=DOUBLE), 0.5)
    rows = [torch.full((4,), c, dtype=DOUBLE) for c in (-3.0, 0.1, -0.4)]
    y = torch.stack([x, *rows]).amax(0)
    expected = x.clamp_min(0.1)
    torch.testing.assert_close(y.loc, expected.loc, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(y.var, expected.var, rtol=2e-3, atol=1e-6)
    nothing = torch.stack([ua.Gaussian(row, 0.0) for row in rows]).amax(0)
    assert torch.equal(nothing.loc, rows[1])
    assert torch.count_nonzero(nothing.var) == 0


def test_many_elements() -> None:
    mean, var = torch.zeros(5000, 1, dtype=DOUBLE), torch.ones(5000, 1, dtype=DOUBLE)
    truth = integrated(mean[:2, 0] * 0, mean[:2, 0] + 1)  # checks the oracle itself: 1/√π, 1 - 1/π
    assert truth == pytest.approx((0.5641895835, 0.6816901138))
    found, spread = largest(mean, var)
    assert float(found) == pytest.approx(3.6776, abs=2e-3)  # 5000 normal draws
    assert float(spread.sqrt()) == pytest.approx(0.3144, rel=5e-3)


def test_correlated_elements_one_after_the_other() -> None:
    generator = torch.Generator().manual_seed(4)
    mean = torch.randn(9, 6, generator=generator, dtype=DOUBLE)
    factors = torch.randn(5, 9, 6, generator=generator, dtype=DOUBLE)
    x = ua.Gaussian.from_factors(mean, 0.5 * factors * torch.rand(9, 1, dtype=DOUBLE))
    call: Callable[[Any], Any] = functools.partial(torch.amax, dim=0)
    truth = ua.propagate(call, x, method="samples", samples=60_000)
    y = ua.propagate(call, x, method="full")
    assert ((y.loc - truth.loc).abs() / truth.std).max() < 0.1
    assert (y.std / truth.std - 1).abs().max() < 0.15


def test_the_index_of_a_maximum_is_not_to_be_used() -> None:
    x = random_input((2, 5))
    values, indices = x.max(1)
    assert torch.equal(values.loc, x.amax(1).loc)
    assert "random" in repr(indices)
    uses: list[Callable[[], Any]] = [
        lambda: indices + 1,
        lambda: indices == 2,
        lambda: torch.zeros(5)[indices],
        lambda: torch.gather(torch.zeros(2, 5), 1, indices),
        lambda: indices.item(),
        lambda: int(x.min(0).indices),
        lambda: x.max(1)[1].float(),
    ]
    for use in uses:
        with pytest.raises(ua.UnsupportedOperation, match="index of a maximum is random"):
            use()


def test_a_maximum_with_itself() -> None:
    x = random_input((2, 3))
    assert torch.maximum(x, x) is x
    assert torch.max(x.loc, x).shape == x.shape
    wide = torch.maximum(ua.Gaussian(torch.zeros(3), 1.0), torch.zeros(3, dtype=DOUBLE))
    assert wide.dtype == DOUBLE


REFUSED: dict[str, Callable[[Any], Any]] = {
    "indices of a pool": lambda x: F.max_pool2d(x, 2, return_indices=True)[1] + 1,
    "indices of an adaptive pool": lambda x: (
        F.adaptive_max_pool2d(x, 2, return_indices=True)[1] + 1
    ),
    "a random grid": lambda x: F.grid_sample(x.loc, x.permute(0, 2, 3, 1)[..., :2]),
    "a random transformation": lambda x: F.affine_grid(x[:, 0, :2, :3], [2, 1, 4, 4]),
    "products that share factors": lambda x: x.cumprod(1),
    "a product at places": lambda x: x.scatter(
        0, torch.zeros(1, 2, 4, 4).long(), x.loc[:1], reduce="multiply"
    ),
    "a spread of one element": lambda x: x[:1, :1, :1, :1].var(),
    "a random slope": lambda x: F.rrelu(x, training=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_answer_says_so(name: str) -> None:
    with pytest.raises(ua.UnsupportedOperation):
        REFUSED[name](random_input((2, 2, 4, 4)))


def test_randomised_relu_in_eval_mode() -> None:
    x = random_input((2, 3))
    y, expected = F.rrelu(x, 0.1, 0.3), F.leaky_relu(x, 0.2)
    torch.testing.assert_close(y.loc, expected.loc)
    torch.testing.assert_close(y.var, expected.var)
    torch.testing.assert_close(F.rrelu(ua.Gaussian(x.loc, 0.0)).loc, F.rrelu(x.loc))


def test_windows_of_a_sum_that_runs_on() -> None:
    """``scatter`` with ``reduce="add"`` has no derivative in torch, hence no case in the table."""
    x, places = random_input((5, 3)), torch.tensor([[2, 0, 2], [1, 1, 0]])
    y = torch.scatter(x[:3], 0, places, x[3:], reduce="add")
    expected = x[:3].scatter_add(0, places, x[3:])
    torch.testing.assert_close(y.var, expected.var)
    number = torch.scatter(x[:3], 0, places, 2.0, reduce="add")
    torch.testing.assert_close(number.loc, torch.scatter(x.loc[:3], 0, places, 2.0, reduce="add"))


SHRINKAGES: dict[str, tuple[Any, Callable[[Any], Any], tuple[float, ...]]] = {
    "threshold": (
        functools.partial(shrinkage.threshold, bound=0.25, value=-0.5),
        lambda x: x if x > 0.25 else -0.5,
        (0.25,),
    ),
    "hardshrink": (
        functools.partial(shrinkage.hardshrink, width=0.5),
        lambda x: x if abs(x) > 0.5 else 0,
        (-0.5, 0.5),
    ),
    "tanhshrink": (shrinkage.tanhshrink, lambda x: x - mp.tanh(x), (0.0,)),
}


@pytest.mark.parametrize("name", SHRINKAGES)
def test_shrinkages_against_mpmath(name: str) -> None:
    ours, function, kinks = SHRINKAGES[name]
    for m in (-3.0, -0.5, 0.01, 0.4, 2.0):
        for s in (0.001, 0.03, 0.3, 0.49, 0.51, 2.0, 10.0):
            found = ours(torch.tensor(m, dtype=DOUBLE), torch.tensor(s * s, dtype=DOUBLE))
            with mp.workdps(30):
                steps = {m + k * s for k in (-12, -6, -3, -1, 0, 1, 3, 6, 12)}
                ends = sorted(steps | {k for k in kinks if abs(k - m) < 12 * s})

                def expected(g: Callable[[Any], Any], m: float = m, s: float = s) -> Any:
                    return mp.quad(lambda x: g(x) * mp.npdf(x, m, s), ends)  # noqa: B023

                first = expected(function)
                spread = expected(lambda x: (function(x) - first) ** 2)  # noqa: B023
                slope = expected(lambda x: function(x) * (x - m)) / mp.mpf(s) ** 2  # noqa: B023
            for value, truth in zip(found, (first, slope, spread), strict=True):
                if abs(truth) > 1e-12:
                    assert abs(float(value) / float(truth) - 1) < 1e-7, (m, s, found, truth)


@pytest.mark.parametrize("name", SHRINKAGES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_shrinkages_are_finite_everywhere(name: str, dtype: torch.dtype) -> None:
    sizes = [0.0, 1e-20, 1e-6, 0.1, 0.5, 1.0, 30.0, 1e4]
    mean = torch.tensor([*sizes, *(-s for s in sizes)], dtype=dtype).repeat(len(sizes))
    var = torch.tensor(sizes, dtype=dtype).repeat_interleave(2 * len(sizes))
    found = SHRINKAGES[name][0](mean.requires_grad_(), var.requires_grad_())
    assert all(torch.isfinite(t).all() for t in found)
    assert (found.var >= 0).all()
    grads = torch.autograd.grad(sum(t.sum() for t in found), (mean, var))
    assert not any(g.isnan().any() for g in grads)


RETURNED = {
    "max": lambda x: torch.max(x, 1),
    "min": lambda x: x.min(1),
    "sort": lambda x: torch.sort(x, 1),
    "topk": lambda x: x.topk(2, 1),
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1),
    "median": lambda x: x.median(1),
    "max_pool": lambda x: F.max_pool1d(x, 2, return_indices=True),
    "adaptive": lambda x: F.adaptive_max_pool1d(x, 2, return_indices=True),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_comes_with_indices_is_of_torchs_own_type(name: str) -> None:
    """So a tree of it has the same form for samples and for Gaussians."""
    mean = torch.randn(3, 4)
    found, wanted = RETURNED[name](ua.Gaussian(mean, std=0.1)), RETURNED[name](mean)
    assert type(found) is type(wanted)
    values, _ = found
    assert values.shape == wanted[0].shape
