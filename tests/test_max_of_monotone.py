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
    def maximum_first(x: Any) -> Any:
        function(x + 0)  # as many random signs are used up as by the function that comes first
        return function(F.max_pool2d(x + 0, 2))

    found = ua.propagate(lambda x: F.max_pool2d(function(x + 0), 2), x, method=method, **options)
    wanted = ua.propagate(maximum_first, x, method=method, **options)
    same(found, wanted)


@pytest.mark.parametrize(("method", "options"), METHODS, ids=[name for name, _ in METHODS])
def test_the_maximum_comes_before_a_normalisation_that_keeps_the_order(x, method, options) -> None:
    module = norm(0.7)

    def maximum_first(x: Any) -> Any:
        module(F.relu(x))
        return module(F.relu(F.max_pool2d(x, 2)))

    found = ua.propagate(lambda x: F.max_pool2d(module(F.relu(x)), 2), x, method, **options)
    wanted = ua.propagate(maximum_first, x, method, **options)
    same(found, wanted)


def test_a_normalisation_that_reverses_the_order_comes_before_the_maximum(x: ua.Gaussian) -> None:
    module = norm(-0.7)

    def model(x: Any) -> Any:
        return F.max_pool2d(module(F.relu(x)), 2)

    found = ua.propagate(model, x, method="full")
    truth = ua.propagate(model, x, method="samples", samples=20_000)
    other = ua.propagate(lambda x: module(F.relu(F.max_pool2d(x, 2))), x, method="full")
    assert float((found.loc - truth.loc).abs().max()) < 0.2
    assert float((other.loc - truth.loc).abs().mean()) > 0.5


@pytest.mark.parametrize("slope", [-0.5, -2.0])
def test_a_function_that_decreases_somewhere_comes_before_the_maximum(
    x: ua.Gaussian, slope: float
) -> None:
    def model(x: Any) -> Any:
        return F.max_pool2d(F.leaky_relu(x, slope), 2)

    found = ua.propagate(model, x, method="diagonal")
    truth = ua.propagate(model, x, method="samples", samples=20_000)
    torch.testing.assert_close(found.loc, truth.loc, rtol=0, atol=0.15)


def test_it_is_closer_to_the_truth(x: ua.Gaussian) -> None:
    def rectified_first(x: Any) -> Any:
        return F.max_pool2d(F.relu(x) + 0, 2)  # a sum is known for no increasing function

    truth = ua.propagate(lambda x: F.max_pool2d(F.relu(x), 2), x, method="samples", samples=40_000)
    first = F.max_pool2d(F.relu(x), 2)
    last = rectified_first(x)

    def off(y: ua.Gaussian) -> float:
        return float((y.std / truth.std - 1).abs().mean())

    def mean_off(y: ua.Gaussian) -> float:
        return float(((y.loc - truth.loc) / truth.std).abs().mean())

    assert off(first) < 0.03
    assert off(last) > 2 * off(first)
    assert mean_off(last) > 2 * mean_off(first)


def _in_place(name: str) -> Any:
    return lambda x: getattr(x + 0, name)()


@pytest.mark.parametrize(
    ("method", "function"),
    [
        (lambda x: x.relu(), F.relu),
        (lambda x: x.relu().tanh(), lambda x: torch.tanh(F.relu(x))),
        (lambda x: F.relu(x).clamp(0.1, 0.9), lambda x: torch.clamp(F.relu(x), 0.1, 0.9)),
        (_in_place("relu_"), F.relu),
        (_in_place("sigmoid_"), torch.sigmoid),
    ],
)
def test_methods_of_a_tensor_are_the_functions_of_their_name(
    x: ua.Gaussian, method: Any, function: Any
) -> None:
    same(F.max_pool2d(method(x), 2), F.max_pool2d(function(x), 2))


def test_modifying_the_operand_in_place_does_not_change_the_maximum(x: ua.Gaussian) -> None:
    wanted = F.max_pool2d(F.relu(x), 2)
    x = x + 0
    y = F.relu(x)
    x.add_(5.0)
    same(F.max_pool2d(y, 2), wanted)


def test_modifying_the_operand_of_the_operand_does_not_change_the_maximum(x: ua.Gaussian) -> None:
    module = norm(0.7).requires_grad_(False)
    wanted = F.max_pool2d(module(F.relu(x)), 2)
    first = F.relu(x)
    y = module(first)
    first.add_(5.0)
    same(F.max_pool2d(y, 2), wanted)


def test_a_value_modified_in_place_is_no_longer_that_function(x: ua.Gaussian) -> None:
    y = F.relu(x)
    y[:, 0] = -1.0
    z = F.max_pool2d(y, 2)
    assert z.loc[:, 0].eq(-1).all()
    assert z.cov.var[:, 0].eq(0).all()


@pytest.mark.parametrize("which", ["mean", "var"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("function", [F.relu, lambda x: F.sigmoid(F.relu(x)), lambda x: 2 * x])
def test_what_is_written_to_the_mean_is_seen_everywhere_or_nowhere(
    function: Any, context: Any, which: str
) -> None:
    """Outside of inference mode ``y.mean`` shares its memory with ``y``; inside it is a copy."""
    mean = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    with context():
        y, wanted = (function(ua.Gaussian(mean.clone(), 0.3)) for _ in range(2))
        getattr(y, which).fill_(3.0)
        if torch.is_inference_mode_enabled():
            assert torch.equal(y.loc, wanted.loc)
            assert torch.equal(y.cov.var, wanted.cov.var)
            same(F.max_pool2d(y, 2), F.max_pool2d(wanted, 2))
        else:
            assert bool((getattr(y, which) == 3).all())
            direct = ua.Gaussian(y.loc.clone(), y.cov.var.clone())
            same(F.max_pool2d(y, 2), F.max_pool2d(direct, 2))


@pytest.mark.parametrize("function", [F.relu, torch.sigmoid, F.gelu])
def test_a_value_is_decided_when_the_function_is_called(function: Any) -> None:
    mean, var = torch.ones(4), torch.full((4,), 0.01)
    wanted = function(ua.Gaussian(mean.clone(), var.clone()))
    y = function(ua.Gaussian(mean, var))
    mean.fill_(-5)
    var.fill_(9)
    same(y, wanted)


@pytest.mark.parametrize("changed", ["mean", "var"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_maximum_does_not_see_what_the_input_became_later(changed: str, context: Any) -> None:
    with context():
        mean, var = torch.randn(1, 2, 4, 4).double(), torch.rand(1, 2, 4, 4).double()
        wanted = F.max_pool2d(F.relu(ua.Gaussian(mean.clone(), var.clone())) + 0, 2)
        first = F.max_pool2d(F.relu(ua.Gaussian(mean.clone(), var.clone())), 2)
        y = F.relu(ua.Gaussian(mean, var))
        (mean if changed == "mean" else var).fill_(7.0)
        found = F.max_pool2d(y, 2)
        # the maximum of the values, or of what they came from; never of what that is now
        if torch.is_inference_mode_enabled():
            same(found, first)
        else:
            same(found, wanted)


class Slope(nn.Module):
    """A batch norm and a PReLU whose weights change in between or afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.prelu = norm(0.7), nn.PReLU(3).double()
        self.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.prelu(self.norm(F.relu(x)))


@pytest.mark.parametrize("which", ["norm.weight", "norm.running_mean", "prelu.weight"])
@pytest.mark.parametrize("pooled", [False, True])
def test_weights_that_change_after_the_call_do_not_matter(
    x: ua.Gaussian, which: str, pooled: bool
) -> None:
    model = Slope()
    pool = (lambda y: F.max_pool2d(y, 2)) if pooled else (lambda y: y)
    wanted = pool(model(x) + 0)  # a sum is known for no increasing function
    y = model(x)
    model.get_parameter(which).mul_(10) if "weight" in which else model.get_buffer(which).mul_(10)
    same(pool(y), wanted)


@pytest.mark.parametrize("method", ["diagonal", "sketch", "full"])
def test_weights_that_change_within_a_pass_do_not_matter(x: ua.Gaussian, method: str) -> None:
    """A convolution and a batch norm are evaluated with the weights that they were called with."""

    class Changing(nn.Module):
        def __init__(self, careless: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.norm = nn.Conv2d(3, 3, 3).double(), norm(0.7)
            self.requires_grad_(False)
            self.careless = careless

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            weight = self.conv.weight.clone()
            if self.careless:
                self.conv.weight.mul_(2)
            z = self.norm(y)
            self.conv.weight.copy_(weight)
            return z.flatten(1)[:, :4]

    torch.manual_seed(1)
    found = ua.propagate(Changing(True).eval(), x, method=method)
    torch.manual_seed(1)
    wanted = ua.propagate(Changing(False).eval(), x, method=method)
    same(found, wanted)


def test_views_see_a_function_in_place(x: ua.Gaussian) -> None:
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


def test_gradients_are_decided_when_the_function_is_called(x: ua.Gaussian) -> None:
    mean = x.loc.clone().requires_grad_()
    with torch.no_grad():
        without = F.relu(ua.Gaussian(mean, 1.0))
    assert not without.loc.requires_grad
    given = F.relu(ua.Gaussian(mean, 1.0))
    with torch.no_grad():
        assert given.loc.requires_grad


def test_looking_at_a_value_does_not_change_the_maximum(x: ua.Gaussian) -> None:
    y = F.relu(x)
    wanted = F.max_pool2d(F.relu(x), 2)
    assert bool((y.mean >= 0).all())
    assert bool((y.var >= 0).all())
    same(F.max_pool2d(y, 2), wanted)


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
def test_activations_are_freed_without_the_garbage_collector(inplace: bool) -> None:
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
