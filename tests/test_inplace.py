"""In-place operations behave as torch's do: the same program on tensors and on Gaussians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import uaprop as ua


def _relu_method(x: Any) -> Any:
    x.relu_()
    return x


def _augmented(x: Any) -> Any:
    y = x
    x += 2
    x *= 3
    x -= 1
    x /= 2
    x **= 2
    return y


def _modules(x: Any) -> Any:
    for module in (
        nn.ReLU(inplace=True),
        nn.LeakyReLU(0.1, inplace=True),
        nn.ReLU6(inplace=True),
        nn.Hardtanh(inplace=True),
        nn.Hardswish(inplace=True),
        nn.Hardsigmoid(inplace=True),
        nn.ELU(inplace=True),
        nn.SELU(inplace=True),
        nn.CELU(inplace=True),
        nn.SiLU(inplace=True),
        nn.Mish(inplace=True),
        nn.Dropout(0.0, inplace=True),
    ):
        module(x)
    return x


def _functions(x: Any) -> Any:
    torch.relu_(x)
    F.elu_(x)
    F.leaky_relu_(x)
    x.clamp_(0.1, 0.9).mul_(2).add_(1).sub_(0.5).div_(3).neg_().abs_().sigmoid_().tanh_()
    x.exp_().sin_().cos_().erf_().square_().pow_(2)
    return x


def _through_a_view(x: Any) -> Any:
    x[:, 0].relu_()
    return x


def _through_two_views(x: Any) -> Any:
    x.view(3, 4).t()[1].mul_(-2)
    return x


def _base_changes_view(x: Any) -> Any:
    row = x[1]
    column = row[2:]
    x.mul_(3)
    return torch.cat([row, column])


def _sibling_changes_view(x: Any) -> Any:
    a, b = x.flatten(), x.t()
    a.add_(1)
    b.mul_(2)
    return torch.cat([a, b.reshape(-1), x.reshape(-1)])


def _copies_are_independent(x: Any) -> Any:
    a, b = x.clone(), x.t().reshape(-1)
    a.mul_(5)
    b.mul_(7)
    return x


def _assignment(x: Any) -> Any:
    x[0] = 1.0
    x[:, 1] = x[:, 2]
    x[x.new_zeros(3, 4).bool()] = 9.0
    x[2, :2] += 1
    return x


def _chunks(x: Any) -> Any:
    a, b = x.chunk(2, dim=1)
    a.relu_()
    b += 1
    return x


PROGRAMS: list[Callable[[Any], Any]] = [
    _relu_method, _augmented, _modules, _functions, _through_a_view, _through_two_views,
    _base_changes_view, _sibling_changes_view, _copies_are_independent, _assignment, _chunks,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_zero_variance_runs_as_torch_does(program: Callable[[Any], Any], mode: Any) -> None:
    with mode():
        start = torch.randn(3, 4, dtype=torch.float64)
        plain = start.clone()
        expected = program(plain)
        x = ua.Gaussian(start.clone(), 0.0)
        result = program(x)
        torch.testing.assert_close(result.loc, expected)
        torch.testing.assert_close(x.loc, plain)  # what happened to the input itself
        assert torch.count_nonzero(result.cov.var) == 0


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__.strip("_"))
def test_variance_is_that_of_the_same_program(program: Callable[[Any], Any]) -> None:
    """Mean and variance after one in-place operation on part of the tensor."""
    if program in (_augmented, _modules, _functions):
        pytest.skip("chains of nonlinear operations are approximate; each has a case of its own")
    x = ua.Gaussian(torch.randn(3, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64))
    truth = ua.propagate(lambda t: program(t.clone()), x, method="samples", samples=40_000)
    result = program(x.clone())
    error = (result.var - truth.var).abs() / truth.var.max()
    assert error.max() < 0.03


def test_users_tensors_are_not_written_to() -> None:
    mean, var = torch.randn(3), torch.rand(3)
    kept = mean.clone(), var.clone()
    x = ua.Gaussian(mean, var)
    x.relu_()
    x += 1
    assert torch.equal(mean, kept[0])
    assert torch.equal(var, kept[1])


def test_result_is_the_same_object() -> None:
    x = ua.Gaussian(torch.randn(3), 1.0)
    assert x.relu_() is x
    assert F.relu(x, inplace=True) is x
    assert nn.ReLU(inplace=True)(x) is x
    assert F.relu(x) is not x


def test_gradients_survive_in_place_operations() -> None:
    mean = torch.randn(4, dtype=torch.float64, requires_grad=True)
    var = torch.rand(4, dtype=torch.float64, requires_grad=True)

    def run(m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = ua.Gaussian(m, v) * 1
        x[:2].relu_()
        x += 1
        return x.loc, x.cov.var

    assert torch.autograd.gradcheck(run, (mean, var))


def test_shape_may_not_change_in_place() -> None:
    x = ua.Gaussian(torch.zeros(3), 1.0)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x += torch.ones(2, 3)


def test_dtype_stays_in_place() -> None:
    x = ua.Gaussian(torch.zeros(3), 1.0)
    x += torch.ones(3, dtype=torch.float64)
    assert x.dtype == x.var.dtype == torch.float32


def test_a_plain_tensor_cannot_become_random() -> None:
    t, x = torch.zeros(3), ua.Gaussian(torch.zeros(3), 1.0)
    with pytest.raises(ua.UnsupportedOperation, match="x = x \\+ y"):
        t += x
    with pytest.raises(ua.UnsupportedOperation, match="plain tensor"):
        t[0] = x[0]
    assert torch.equal(t, torch.zeros(3))
