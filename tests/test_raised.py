"""max f(x) = f(max x) for an increasing f: maxima are taken of what is closer to Gaussian."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua

METHODS = [("diagonal", {}), ("sketch", {"probes": 8}), ("adjoint", {"probes": 8}), ("full", {})]
INCREASING = [
    F.relu,
    F.relu6,
    torch.tanh,
    torch.sigmoid,
    F.softplus,
    F.selu,
    F.hardtanh,
    F.hardsigmoid,
    lambda x: F.elu(x, 0.5),
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: x.clamp(-0.5, 0.5),
    lambda x: F.relu(x, inplace=True),
    lambda x: x.relu_(),
]


@pytest.fixture
def x() -> ua.Gaussian:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    return ua.Gaussian(mean, torch.rand(mean.shape, generator=generator, dtype=torch.float64))


def same(a: ua.Gaussian, b: ua.Gaussian) -> None:
    torch.testing.assert_close(a.loc, b.loc, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(a.cov.var, b.cov.var, rtol=1e-12, atol=1e-14)


def norm(weight: float) -> nn.Module:
    module = nn.BatchNorm2d(3).double().eval()
    nn.init.constant_(module.weight, weight)
    nn.init.normal_(module.running_mean)
    return module


@pytest.mark.parametrize(("method", "options"), METHODS, ids=[name for name, _ in METHODS])
@pytest.mark.parametrize("function", INCREASING)
def test_the_maximum_comes_first(x, function, method: str, options: dict[str, Any]) -> None:
    found = ua.propagate(lambda x: F.max_pool2d(function(x + 0), 2), x, method=method, **options)
    wanted = ua.propagate(lambda x: function(F.max_pool2d(x + 0, 2)), x, method=method, **options)
    same(found, wanted)


@pytest.mark.parametrize(("method", "options"), METHODS, ids=[name for name, _ in METHODS])
def test_also_behind_a_normalisation_that_keeps_the_order(x, method, options) -> None:
    module = norm(0.7)
    found = ua.propagate(lambda x: F.max_pool2d(module(F.relu(x)), 2), x, method, **options)
    wanted = ua.propagate(lambda x: module(F.relu(F.max_pool2d(x, 2))), x, method, **options)
    same(found, wanted)


def test_but_not_behind_one_that_reverses_it(x: ua.Gaussian) -> None:
    module = norm(-0.7)

    def model(x: Any) -> Any:
        return F.max_pool2d(module(F.relu(x)), 2)

    found = ua.propagate(model, x, method="full")
    truth = ua.propagate(model, x, method="samples", samples=20_000)
    other = ua.propagate(lambda x: module(F.relu(F.max_pool2d(x, 2))), x, method="full")
    assert float((found.loc - truth.loc).abs().max()) < 0.2
    assert float((other.loc - truth.loc).abs().mean()) > 0.5


@pytest.mark.parametrize("slope", [-0.5, -2.0])
def test_nor_behind_a_function_that_decreases_somewhere(x: ua.Gaussian, slope: float) -> None:
    def model(x: Any) -> Any:
        return F.max_pool2d(F.leaky_relu(x, slope), 2)

    found = ua.propagate(model, x, method="diagonal")
    truth = ua.propagate(model, x, method="samples", samples=20_000)
    torch.testing.assert_close(found.loc, truth.loc, rtol=0, atol=0.15)


def test_it_is_closer_to_the_truth(x: ua.Gaussian) -> None:
    def later(x: Any) -> Any:
        y = F.relu(x)
        y.loc  # noqa: B018  asked for: the maximum can only be taken of it
        return F.max_pool2d(y, 2)

    truth = ua.propagate(lambda x: F.max_pool2d(F.relu(x), 2), x, method="samples", samples=40_000)
    first = F.max_pool2d(F.relu(x), 2)
    last = later(x)

    def off(y: ua.Gaussian) -> float:
        return float((y.std / truth.std - 1).abs().mean())

    def mean_off(y: ua.Gaussian) -> float:
        return float(((y.loc - truth.loc) / truth.std).abs().mean())

    assert off(first) < 0.03
    assert off(last) > 2 * off(first)
    assert mean_off(last) > 2 * mean_off(first)


def test_writing_to_the_operand_does_not_change_what_waits(x: ua.Gaussian) -> None:
    wanted = F.relu(x).loc.clone()
    x = x + 0
    waiting = F.relu(x)
    x.add_(5.0)
    torch.testing.assert_close(waiting.loc, wanted)


def test_nor_does_writing_to_an_operand_that_waits_itself(x: ua.Gaussian) -> None:
    module = norm(0.7)
    wanted = module(F.relu(x)).loc.detach().clone()
    first = F.relu(x)
    waiting = module(first)
    assert waiting.raised is not None
    first.add_(5.0)
    torch.testing.assert_close(waiting.loc.detach(), wanted)


def test_views_see_what_waits(x: ua.Gaussian) -> None:
    x = x + 0
    view = x[:, 0]
    x.relu_()
    assert bool((view.loc >= 0).all())
    view.add_(1.0)
    assert float(x.loc[:, 0].min()) >= 1
    other = x + 0
    part = other[:, 0]
    part.sub_(10.0).relu_()
    assert float(other.loc[:, 0].max()) < 1e-3


def test_what_waits_remembers_whether_gradients_were_wanted(x: ua.Gaussian) -> None:
    mean = x.loc.clone().requires_grad_()
    with torch.no_grad():
        without = F.relu(ua.Gaussian(mean, 1.0))
    assert not without.loc.requires_grad
    given = F.relu(ua.Gaussian(mean, 1.0))
    with torch.no_grad():
        assert given.loc.requires_grad


def test_shape_and_dtype_do_not_ask_for_it(x: ua.Gaussian) -> None:
    y = F.relu(x)
    assert (y.shape, y.ndim, y.dtype, y.device, y.numel()) == (x.shape, 4, x.dtype, x.device, 96)
    assert y.raised is not None
    assert y.loc is not None
    assert y.raised is None


def test_batch_norm_before_permuted_cotangents() -> None:
    """torch 2.13 has a wrong derivative here: batch_norm in eval mode, (N, C, H, 1), permuted."""
    torch.manual_seed(0)
    module = nn.BatchNorm2d(64).double().eval()
    nn.init.uniform_(module.weight, 0.5, 2)
    matrix = torch.randn(64 * 8, 2, dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        return module(x.view(1, 64, 8, 1)).permute(0, 2, 1, 3).reshape(1, -1) @ matrix

    x = ua.Gaussian(torch.randn(1, 512, dtype=torch.float64), 1.0)
    wanted = ua.propagate(model, x, method="diagonal").cov.var  # a linear model: exact
    for method in ("adjoint", "hybrid"):
        y = ua.propagate(model, x, method=method)
        torch.testing.assert_close(y.cov.var, wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [-torch.inf, -1e30, -1e4, -50.0])
@pytest.mark.parametrize(("method", "options"), METHODS, ids=[name for name, _ in METHODS])
def test_padding_never_wins(x: ua.Gaussian, value: float, method: str, options: dict) -> None:
    def by_hand(x: Any) -> Any:
        return F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=value), 3, 2)

    def ceiling(x: Any) -> Any:
        return F.max_pool2d(x, 3, 2, ceil_mode=True)

    found = ua.propagate(by_hand, x, method=method, **options)
    wanted = ua.propagate(ceiling, x, method=method, **options)
    torch.testing.assert_close(found.loc, wanted.loc, rtol=0, atol=1e-6)
    if method in ("diagonal", "full"):
        torch.testing.assert_close(found.cov.var, wanted.cov.var, rtol=1e-6, atol=1e-9)


def test_a_window_of_padding_alone(x: ua.Gaussian) -> None:
    y = ua.propagate(
        lambda x: F.max_pool2d(F.pad(x, (2, 0, 0, 0), value=-7e3), 2), x, method="sketch"
    )
    assert y.loc[..., 0].eq(-7e3).all()
    assert y.cov.var[..., 0].eq(0).all()
    assert bool((y.cov.var[..., 1:] > 0).all())


@pytest.mark.parametrize("inplace", [False, True])
def test_what_waits_does_not_refer_to_itself(inplace: bool) -> None:
    """Or the activations would stay in memory until the garbage collector comes by."""
    alive = []

    def model(x: Any) -> Any:
        y = x * 2
        alive.append(weakref.ref(y.loc))
        return F.max_pool2d(F.relu(y, inplace=inplace), 2)

    gc.disable()
    try:
        with torch.no_grad():
            z = model(ua.Gaussian(torch.randn(1, 2, 4, 4), 0.1))
        assert alive[0]() is None
        assert z.shape == (1, 2, 2, 2)
    finally:
        gc.enable()
