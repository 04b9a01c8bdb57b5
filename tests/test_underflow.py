"""Noise that is too small for a dtype is refused, not dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import uaprop as ua


@pytest.mark.parametrize(
    ("dtype", "spread"),
    [
        (torch.float16, {"std": 1e-4}),
        (torch.float16, {"std": 3e-4}),
        (torch.float16, {"std": torch.tensor(1e-4)}),
        (torch.float16, {"std": torch.tensor(1e-4, dtype=torch.float16)}),
        (torch.float16, {"std": torch.tensor([0.1, 1e-4, 0.0])}),
        (torch.float16, {"var": 1e-8}),
        (torch.float16, {"var": torch.tensor(1e-8)}),
        (torch.float16, {"var": torch.tensor([1.0, 1e-9, 0.0], dtype=torch.float64)}),
        (torch.bfloat16, {"std": 1e-25}),
        (torch.bfloat16, {"var": 1e-42}),
        (torch.float32, {"std": 1e-25}),
        (torch.float32, {"std": torch.full((3,), 1e-23)}),
        (torch.float32, {"var": 1e-50}),
        (torch.float32, {"var": torch.tensor(1e-50, dtype=torch.float64)}),
        (torch.float64, {"std": 1e-170}),
    ],
)
def test_a_variance_that_would_become_zero_is_refused(
    dtype: torch.dtype, spread: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"too small for a mean in torch\..*would become zero"):
        ua.Gaussian(torch.ones(3, dtype=dtype), **spread)


@pytest.mark.parametrize(
    ("dtype", "std"),
    [
        (torch.float16, 2e-3),
        (torch.float16, 0.1),
        (torch.bfloat16, 1e-4),
        (torch.bfloat16, 1e-15),
        (torch.float32, 1e-4),
        (torch.float32, 1e-20),
        (torch.float64, 1e-150),
    ],
)
def test_a_variance_that_the_dtype_holds_is_right(dtype: torch.dtype, std: float) -> None:
    for given in (std, torch.tensor(std, dtype=torch.float64), torch.tensor([std, 0.0, 1.0])):
        x = ua.Gaussian(torch.ones(3, dtype=dtype), std=given)
        assert x.dtype == x.cov.var.dtype == dtype
        assert float(x.cov.var[0].double()) == pytest.approx(std**2, rel=0.05)
    assert (ua.Gaussian(torch.ones(3, dtype=dtype), var=0.0).cov.var == 0).all()
    assert (ua.Gaussian(torch.ones(3, dtype=dtype), std=0.0).cov.var == 0).all()


def test_a_square_is_rounded_once() -> None:
    std = 0.0123
    x = ua.Gaussian(torch.zeros(1, dtype=torch.float16), std=std)
    assert float(x.cov.var) == float(torch.tensor(std**2).half())


def test_the_gradient_of_a_deviation_reaches_it() -> None:
    std = torch.tensor([0.1, 0.2], requires_grad=True)
    ua.Gaussian(torch.zeros(2, dtype=torch.bfloat16), std=std).cov.var.sum().backward()
    torch.testing.assert_close(std.grad, torch.tensor([0.2, 0.4]), rtol=0.02, atol=0)


@pytest.mark.parametrize(
    "convert",
    [lambda x: x.half(), lambda x: x.to(torch.float16), lambda x: x.type_as(x.loc.half())],
)
def test_a_conversion_in_which_noise_would_be_lost_is_refused(convert: Any) -> None:
    x = ua.Gaussian(torch.ones(2, 3), std=1e-4)
    for value in (x, ua.propagate(nn.Identity(), x, "samples", samples=20)):
        with pytest.raises(ua.UnsupportedOperation, match=r"conversion to torch\.float16.*zero"):
            convert(value)
        assert (value.bfloat16().cov.var > 0).all()
    assert (convert(ua.Gaussian(torch.ones(2, 3), std=0.1)).cov.var > 0).all()


def test_a_conversion_inside_of_a_model_is_refused_too() -> None:
    x = ua.Gaussian(torch.ones(2, 3), std=1e-4)
    with pytest.raises(ua.UnsupportedOperation, match="conversion to"):
        ua.propagate(lambda t: t.half().float(), x, "diagonal")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ua.Gaussian.from_factors(torch.zeros(2).half(), torch.full((1, 2), 1e-4)),
        lambda: ua.Gaussian.from_factors(torch.zeros(2), torch.full((1, 2), 1e-25)),
        lambda: ua.Gaussian.from_factors(torch.zeros(2), 1e-60 * torch.ones(1, 2).double()),
        lambda: ua.Gaussian.from_dense(torch.zeros(2), 1e-50 * torch.eye(2).double()),
    ],
)
def test_correlated_noise_that_would_become_zero_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="too small for a mean in"):
        make()


def test_correlated_noise_may_leave_elements_out() -> None:
    factors = torch.tensor([[0.1, 0.0]])
    for dtype in (torch.float16, torch.float32):
        x = ua.Gaussian.from_factors(torch.zeros(2, dtype=dtype), factors)
        torch.testing.assert_close(x.cov.var.float(), torch.tensor([0.01, 0.0]), rtol=1e-2, atol=0)
    x = ua.Gaussian.from_dense(torch.zeros(2), torch.diag(torch.tensor([1.0, 0.0])))
    assert x.cov.var.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "operation", "std"),
    [
        ("torch.mul", lambda x: x * 1e-2, 1e-2),
        ("torch.div", lambda x: x / 100, 1e-2),
        ("mean", lambda x: x.expand(2000, 4).clone().mean(0), 5e-3),
        ("torch.tanh", lambda x: torch.tanh(x + 4.5), 1e-2),
        ("torch.mul", lambda x: x * 100, 10.0),
        ("linear", lambda x: nn.functional.linear(x, torch.full((3, 4), 1e-3).to(x.dtype)), 1e-2),
        ("mul_", lambda x: x.clone().mul_(1e-2), 1e-2),
    ],
)
def test_an_operation_whose_variances_float16_cannot_hold_is_refused(
    name: str, operation: Any, std: float
) -> None:
    x = ua.Gaussian(torch.ones(4).half(), std=std)
    with pytest.raises(ua.UnsupportedOperation, match=f"{name}.*float16 cannot hold"):
        operation(x)
    operation(ua.Gaussian(torch.ones(4), std=std))


def test_single_elements_far_below_zero_do_not_refuse_a_relu_in_float16() -> None:
    mean = torch.linspace(-1, 1, 101).half()
    y = torch.relu(ua.Gaussian(mean, std=0.05))
    exact = torch.relu(ua.Gaussian(mean.float(), std=0.05))
    torch.testing.assert_close(y.var.float(), exact.var, rtol=0.02, atol=1e-6)
