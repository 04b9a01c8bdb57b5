"""Convolutions with a quick derivative by the input: torch's own values and derivatives."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import uaprop as ua
from uaprop.numerics.convolve import _Convolution, _lain, convolve, only_by_inputs

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one channel": ((2, 1, 7, 6), (5, 1, 3, 3), {}),
    "long, strided": ((3, 1, 40, 1), (4, 1, 16, 1), {"stride": (4, 1)}),
    "colour, strided": ((2, 3, 9, 11), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((2, 1, 12, 12), (3, 1, 3, 2), {"dilation": (2, 3), "padding": (1, 0)}),
    "rows left over": ((1, 2, 10, 9), (3, 2, 3, 3), {"stride": 3}),
}


def arguments(options: dict[str, Any]) -> list[Any]:
    usual = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    return list((usual | options).values())


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name: str) -> None:
    size, kernel, options = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(kernel, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(kernel[0], dtype=torch.float64)

    def quick(x: torch.Tensor) -> torch.Tensor:
        with only_by_inputs():
            return convolve(x, weight, bias, *arguments(options))

    y = quick(x)
    assert "_Convolution" in type(y.grad_fn).__name__
    assert torch.equal(y, F.conv2d(x, weight, bias, **options))
    torch.autograd.gradcheck(quick, x)
    torch.autograd.gradgradcheck(quick, x)
    # forwards: the derivative of a vector-Jacobian product by its vector
    vector = torch.zeros_like(y).requires_grad_()
    (pulled,) = torch.autograd.grad(y, x, vector, create_graph=True)
    tangent = torch.randn_like(x)
    (pushed,) = torch.autograd.grad(pulled, vector, tangent)
    torch.testing.assert_close(pushed, F.conv2d(tangent, weight, None, **options))


ONE_COLUMN: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one channel, strided": ((3, 1, 40, 1), (4, 1, 16, 1), {"stride": (4, 1)}),
    "channels, padded": ((2, 6, 30, 1), (5, 6, 7, 1), {"padding": (3, 0)}),
    "groups, dilated": ((2, 6, 30, 1), (4, 3, 5, 1), {"groups": 2, "dilation": (3, 1)}),
    "one number each": ((2, 2, 30, 1), (4, 2, 5, 1), {"stride": 2, "dilation": 2}),
}


@pytest.mark.parametrize("name", ONE_COLUMN)
@pytest.mark.parametrize("inputs", [True, False])
def test_pictures_of_one_column(name: str, inputs: bool) -> None:
    size, kernel, options = ONE_COLUMN[name]
    torch.manual_seed(0)
    x, weight = torch.randn(size, requires_grad=True), torch.randn(kernel, requires_grad=True)
    bias = torch.randn(kernel[0])
    assert _lain(x, weight, *arguments(options)[:3]) is not None
    with only_by_inputs() if inputs else contextlib.nullcontext():
        y = convolve(x, weight, bias, *arguments(options))
    expected = F.conv2d(x, weight, bias, **options)
    assert y.is_contiguous()
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    vector = torch.randn_like(y)
    asked = (x,) if inputs else (x, weight)
    found = torch.autograd.grad(y, asked, vector)
    wanted = torch.autograd.grad(expected, asked, vector)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "kernel", "options"),
    [
        ((2, 3, 30, 2), (4, 3, 5, 1), {}),
        ((2, 3, 30, 1), (4, 3, 5, 1), {"padding": 1}),
        ((2, 3, 30, 1), (4, 3, 5, 3), {"padding": (0, 1)}),
        ((2, 3, 30, 1), (4, 3, 5, 1), {"padding": "same"}),
    ],
)
def test_pictures_that_stay_upright(
    size: tuple[int, ...], kernel: tuple[int, ...], options: dict[str, Any]
) -> None:
    x, weight = torch.randn(size), torch.randn(kernel)
    assert _lain(x, weight, *arguments(options)[:3]) is None
    y = convolve(x, weight, None, *arguments(options))
    assert torch.equal(y, F.conv2d(x, weight, **options))


def test_one_column_in_all_methods() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, (8, 1), (2, 1)),
        torch.nn.ReLU(),
        torch.nn.Conv2d(6, 3, (3, 1)),
        torch.nn.Flatten(),
    )
    mean = torch.randn(2, 1, 24, 1)
    for method in (
        "diagonal",
        "sketch",
        "adjoint",
        "linear",
        "full",
    ):  # whose seeds suit both dtypes
        single = ua.propagate(model, ua.Gaussian(mean, std=0.3), method=method)
        double = ua.propagate(
            copy.deepcopy(model).double(), ua.Gaussian(mean.double(), std=0.3), method=method
        )
        torch.testing.assert_close(single.var.double(), double.var, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "kernel", "options"),
    [
        ((2, 3, 8, 8), (4, 3, 3, 3), {}),
        ((2, 1, 8, 8), (4, 1, 3, 3), {"padding": "same"}),
        ((2, 4, 8, 8), (4, 2, 3, 3), {"groups": 2}),
        ((1, 8, 8), (4, 1, 3, 3), {}),
    ],
)
def test_otherwise_it_is_torchs(
    size: tuple[int, ...], kernel: tuple[int, ...], options: dict[str, Any]
) -> None:
    x, weight = torch.randn(size, requires_grad=True), torch.randn(kernel)
    with only_by_inputs():
        y = convolve(x, weight, None, *arguments(options))
    assert "_Convolution" not in type(y.grad_fn).__name__
    assert torch.equal(y, F.conv2d(x, weight, **options))


def test_weights_have_derivatives_outside() -> None:
    x, weight = torch.randn(2, 1, 8, 8, requires_grad=True), torch.randn(4, 1, 3, 3)
    weight.requires_grad_()
    y = convolve(x, weight, None, *arguments({}))
    assert torch.autograd.grad(y.sum(), weight)[0].abs().sum() > 0


@pytest.mark.parametrize("method", ["hybrid", "adjoint"])
def test_a_response_goes_through_it(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, (8, 1), (2, 1)), torch.nn.ReLU(), torch.nn.Flatten()
    )
    x = ua.Gaussian(torch.randn(3, 1, 20, 1), std=0.3)
    used = []
    apply = _Convolution.apply
    monkeypatch.setattr(_Convolution, "apply", lambda *a: used.append(1) or apply(*a))
    quick = ua.propagate(model, x, method=method)
    assert used
    monkeypatch.setattr("uaprop.numerics.convolve._pays", lambda *_: False)
    plain = ua.propagate(model, x, method=method)
    torch.testing.assert_close(quick.covariance(), plain.covariance(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(quick.attribution(1), plain.attribution(1), rtol=1e-4, atol=1e-6)
