"""``linear`` refuses a model whose gradients are not its derivative, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import uaprop as ua


def _deep(outputs: int) -> nn.Module:
    torch.manual_seed(1)
    layers = [each for _ in range(12) for each in (nn.Linear(32, 32), nn.ReLU())]
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight)
    return nn.Sequential(*layers, nn.Linear(32, outputs))


def _pooled() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Unflatten(1, (2, 4, 4)),
        nn.Conv2d(2, 8, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Hardtanh(-0.1, 0.1),
        nn.Flatten(),
        nn.Linear(32, 2),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "deep": lambda: _deep(10),
    "deep, one output": lambda: _deep(1),
    "pooled": _pooled,
    "normalised": lambda: nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 3), nn.Softmax(1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("std", [1e-5, 1e-3, 0.05, 1.0])
@pytest.mark.parametrize("name", NETWORKS)
def test_kinks_curvature_and_rounding_are_not_taken_for_wrong_gradients(
    name: str, std: float, dtype: torch.dtype
) -> None:
    model = NETWORKS[name]().to(dtype)
    for seed in range(3):
        mean = torch.randn(2, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)
        assert ua.propagate(model, ua.Gaussian(mean, std=std), "linear").std.isfinite().all()


@pytest.mark.parametrize("std", [1e-5, 1e-3, 0.05, 1.0])
def test_a_part_that_is_detached_is_noticed_at_any_noise(std: float) -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(32, 8), nn.Tanh())

    def model(x: Any) -> Any:
        return net(x) + net(x).detach()

    x = ua.Gaussian(torch.randn(2, 32), std=std)
    with pytest.raises(
        ua.UnsupportedOperation, match=r"autograd gives 0\.(5|499|501) times.*samples"
    ):
        ua.propagate(model, x, "linear")


@pytest.mark.parametrize("std", [1e-3, 0.1])
def test_errors_of_opposite_sign_are_noticed(std: float) -> None:
    torch.manual_seed(5)
    net = nn.Linear(32, 8)

    def model(x: Any) -> Any:
        y = net(x)
        sign = torch.tensor([1.0, -1.0] * 4)
        return y + 0.3 * sign * (y - y.detach())

    x = ua.Gaussian(torch.randn(2, 32), std=std)
    with pytest.raises(ua.UnsupportedOperation, match=r"of single outputs.*samples"):
        ua.propagate(model, x, "linear")


@pytest.mark.parametrize("method", ["adjoint", "hybrid"])
def test_detached_parts_respond_in_the_methods_with_rules(method: str) -> None:
    torch.manual_seed(3)
    net = nn.Linear(6, 4)

    def model(x: Any) -> Any:
        with torch.no_grad():
            y = net(x)
        return y + net(x).detach()

    x = ua.Gaussian(torch.randn(2, 6), std=0.1)
    expected = (4 * 0.01 * net.weight @ net.weight.T).expand(2, 4, 4)
    y = ua.propagate(model, x, method)
    torch.testing.assert_close(y.covariance(), expected, rtol=1e-4, atol=1e-6)
    assert not y.requires_grad


def test_an_operation_without_a_derivative_is_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 4))

    class NoBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise RuntimeError("there is no derivative")

    with pytest.raises(ua.UnsupportedOperation, match="there is no derivative"):
        ua.propagate(
            lambda x: NoBackward.apply(model(x)), ua.Gaussian(torch.ones(2, 6), std=0.1), "linear"
        )


@pytest.mark.parametrize("std", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize(
    "model",
    [torch.special.bessel_j0, lambda x: torch.cos(x).detach(), lambda x: (x, torch.cos(x.data))],
)
def test_an_output_that_autograd_does_not_know_is_no_constant(
    model: Callable[[Any], Any], std: float
) -> None:
    with pytest.raises(ua.UnsupportedOperation, match="autograd"):
        ua.propagate(model, ua.Gaussian(torch.full((1, 2), 0.1), std=std), "linear")
