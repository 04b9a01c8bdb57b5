"""Operations without a rule, linearised by explicit choice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import uaprop as ua


def product(x: Tensor) -> Tensor:
    return torch.cumprod(x, dim=1).sum(1)


@pytest.fixture
def x() -> ua.Gaussian:
    mean = torch.linspace(0.6, 1.4, 8, dtype=torch.float64).view(2, 4)
    return ua.Gaussian(mean, std=0.02)


def jacobian_variance(function, x: ua.Gaussian) -> Tensor:
    jacobian = torch.autograd.functional.jacobian(function, x.loc).flatten(1)
    return (jacobian.square() * x.cov.var.flatten()).sum(1)


def test_an_operation_without_a_rule_is_refused_unless_asked(x: ua.Gaussian) -> None:
    with pytest.raises(ua.UnsupportedOperation, match="cumprod"):
        ua.propagate(product, x, method="sketch")


@pytest.mark.parametrize(("method", "tolerance"), [("adjoint", 1e-9), ("full", 0.01)])
def test_the_derivative_at_the_mean_carries_the_noise(x, method: str, tolerance: float) -> None:
    y = ua.propagate(product, x, method=method, unsupported="linearise")
    torch.testing.assert_close(y.cov.var, jacobian_variance(product, x), rtol=tolerance, atol=0)
    assert y.provenance.linearised == ("torch.cumprod",)
    assert "linearised: torch.cumprod" in str(y.provenance)


def test_a_sketch_agrees_on_average(x: ua.Gaussian) -> None:
    y = ua.propagate(product, x, method="sketch", probes=4096, unsupported="linearise")
    torch.testing.assert_close(y.cov.var, jacobian_variance(product, x), rtol=0.1, atol=0)
    truth = ua.propagate(product, x, method="samples", samples=20_000)
    torch.testing.assert_close(y.std, truth.std, rtol=0.06, atol=0)


def test_several_inputs_and_several_outputs() -> None:
    a = ua.Gaussian(torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double(), 1e-4)
    b = ua.Gaussian(torch.tensor([[1.0], [2.0]]).double(), 4e-4)

    def model(a: Tensor, b: Tensor) -> Tensor:
        q, r = torch.linalg.qr(a)
        return (q @ b).sum() + r.sum() + torch.linalg.solve(a, b).sum()

    y = ua.propagate(model, (a, b), method="adjoint", unsupported="linearise")
    jacobians = torch.autograd.functional.jacobian(model, (a.loc, b.loc))
    wanted = sum((j.square() * x.cov.var).sum() for j, x in zip(jacobians, (a, b), strict=True))
    torch.testing.assert_close(y.cov.var, wanted, rtol=1e-4, atol=0)
    assert any("qr" in name for name in y.provenance.linearised)
    assert any("solve" in name for name in y.provenance.linearised)


def test_the_place_is_told(x: ua.Gaussian) -> None:
    class Block(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return product(x)

    model = torch.nn.Sequential(torch.nn.Tanh(), Block())
    y = ua.propagate(model, x, method="sketch", unsupported="linearise")
    assert y.provenance.linearised == ("torch.cumprod in module '1 (Block)'",)


@pytest.mark.parametrize("method", ["diagonal", "calibrated"])
def test_refused_where_no_correlation_is_kept(x: ua.Gaussian, method: str) -> None:
    with pytest.raises(ValueError, match="cannot linearise"):
        ua.propagate(product, x, method=method, unsupported="linearise")


def test_a_decision_has_no_derivative_worth_the_name(x: ua.Gaussian) -> None:
    for decide in (torch.round, torch.sign, lambda x: x > 0, torch.argmax):
        with pytest.raises(ua.UnsupportedOperation, match="random, but not Gaussian"):
            ua.propagate(decide, x, method="sketch", unsupported="linearise")


def test_nothing_but_the_two_choices(x: ua.Gaussian) -> None:
    with pytest.raises(ValueError, match="'error' or 'linearise'"):
        ua.propagate(product, x, method="sketch", unsupported="ignore")


def test_the_choice_ends_with_the_call(x: ua.Gaussian) -> None:
    ua.propagate(product, x, method="sketch", unsupported="linearise")
    with pytest.raises(ua.UnsupportedOperation):
        product(x)


def test_methods_without_rules_have_nothing_to_linearise(x: ua.Gaussian) -> None:
    y = ua.propagate(product, x, method="hybrid", unsupported="linearise")
    assert y.provenance.linearised == ()


def test_an_operation_without_forward_derivative(x: ua.Gaussian) -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    from uaprop.covariance.derivative import along

    (slope,) = along(Cube.apply, (x.loc,), [torch.ones(3, *x.shape, dtype=torch.float64)])
    torch.testing.assert_close(slope, (3 * x.loc**2).expand(3, *x.shape))
