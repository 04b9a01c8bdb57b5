"""Convolutions with a quick derivative by the input: torch's own values and derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import uaprop as ua
from uaprop.numerics.convolve import _Convolution, convolve, only_by_inputs

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
