"""Empty batches, scalars, no outputs, and torch's defaults: the right result or a clear error."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import uaprop as ua

METHODS = ("auto", "diagonal", "linear", "sketch", "adjoint", "hybrid", "full", "samples")
ATTRIBUTED = ("auto", "linear", "adjoint", "hybrid")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 6),
        nn.GELU(),
        nn.LayerNorm(6),
        nn.Linear(6, 3),
    ).eval()


@pytest.mark.parametrize("method", METHODS)
def test_scalars(method: str) -> None:
    x = ua.Gaussian(torch.tensor(1.0), var=0.1)
    y = ua.propagate(torch.exp, x, method)
    true = (torch.tensor(0.1).expm1() * torch.tensor(2.1).exp()).sqrt()
    assert y.shape == ()
    assert y.covariance().shape == (1, 1)
    assert float(y.std) == pytest.approx(float(true), rel=0.3)
    if method in ATTRIBUTED:
        assert y.attribution(0).shape == ()


def test_scalars_can_be_compared() -> None:
    x = ua.Gaussian(torch.tensor(1.0), var=0.1)
    comparison = ua.compare(torch.exp, x, samples=200, repeats=1)
    assert not [row.failure for row in comparison.rows if row.failure]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mean", [torch.ones(3), torch.ones(2, 3)])
def test_a_scalar_output(method: str, mean: torch.Tensor) -> None:
    y = ua.propagate(lambda x: (2 * x).sum(), ua.Gaussian(mean, var=0.1), method)
    assert y.shape == ()
    assert float(y.std) == pytest.approx((0.4 * mean.numel()) ** 0.5, rel=0.3)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch(method: str) -> None:
    model = network()
    y = ua.propagate(model, ua.Gaussian(torch.zeros(0, 1, 4, 4), var=0.1), method)
    assert y.shape == y.std.shape == (0, 3)
    assert y.covariance().shape == (0, 3, 3)
    assert ua.flip_probability(y).win.shape == (0, 3)
    if method in ATTRIBUTED:
        assert y.attribution(2).shape == (0, 1, 4, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "hybrid", "outputs": [1]},
        {"method": "adjoint", "rank": 2},
        {"method": "hybrid", "chunk": 2},
        {"method": "samples", "moderated": True},
        {"method": "samples", "centred": True},
        {"method": "samples", "antithetic": True},
    ],
)
def test_an_empty_batch_with_options(options: dict[str, Any]) -> None:
    y = ua.propagate(network(), ua.Gaussian(torch.zeros(0, 1, 4, 4), var=0.1), **options)
    assert y.shape == (0, 1 if "outputs" in options else 3)


@pytest.mark.parametrize("method", METHODS)
def test_no_outputs(method: str) -> None:
    x = ua.Gaussian(torch.ones(2, 3), var=0.1)
    nothing, some = ua.propagate(lambda x: ((x * 2)[:, :0], x * 2), x, method)
    assert nothing.covariance().shape == (2, 0, 0)
    torch.testing.assert_close(some.std, torch.full((2, 3), 0.4**0.5), rtol=0.4, atol=0)
    assert ua.propagate(lambda x: x * 2, ua.Gaussian(torch.ones(2, 0), var=0.1), method).shape == (
        2,
        0,
    )
    assert ua.propagate(lambda x: x * 2, ua.Gaussian(torch.ones(0), var=0.1), method).shape == (0,)


def test_nothing_to_compare_or_to_learn_from_is_said() -> None:
    x = ua.Gaussian(torch.zeros(0, 1, 4, 4), var=0.1)
    with pytest.raises(ValueError, match="nothing to compare"):
        ua.compare(network(), x, samples=100, repeats=1)
    with pytest.raises(ValueError, match="no elements"):
        ua.calibrate(network(), x)
    assert ua.coverage(network(), x).supported


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "default device": lambda: default_device("meta"),
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "inference mode": torch.inference_mode,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", [*METHODS, "calibrated"])
def test_results_do_not_depend_on_the_settings_of_torch(method: str, setting: str) -> None:
    model, x = network(), ua.Gaussian(torch.randn(3, 1, 4, 4), std=0.1)

    def run() -> ua.Gaussian:
        options = {"calibration": ua.calibrate(model, x)} if method == "calibrated" else {}
        return ua.propagate(model, x, method, **options)

    expected = run()
    with SETTINGS[setting]():
        y = run()
        flip = ua.flip_probability(y).flip
        attributed = y.attribution(1) if method in ATTRIBUTED else None
    torch.testing.assert_close(y.mean, expected.mean)
    torch.testing.assert_close(y.covariance(), expected.covariance())
    torch.testing.assert_close(flip, ua.flip_probability(expected).flip)
    if attributed is not None:
        torch.testing.assert_close(attributed, expected.attribution(1))


@pytest.mark.parametrize("setting", SETTINGS)
def test_checks_do_not_depend_on_the_settings_of_torch(setting: str) -> None:
    model, x = network(), ua.Gaussian(torch.randn(3, 1, 4, 4), std=0.1)
    with SETTINGS[setting]():
        rows = ua.compare(model, x, samples=100, repeats=1).rows
        assert not [row.failure for row in rows if row.failure]
        assert ua.coverage(model, x).supported


RUNS_WITH_VALUES: dict[str, Callable[..., Any]] = {
    **{
        name: functools.partial(ua.propagate, method=name)
        for name in ("auto", "samples", "hybrid", "adjoint", "linear")
    },
    "compare": ua.compare,
    "calibrate": ua.calibrate,
}


@pytest.mark.parametrize("name", RUNS_WITH_VALUES)
def test_inputs_on_the_meta_device_have_no_values(name: str) -> None:
    with default_device("meta"):
        x = ua.Gaussian(torch.zeros(2, 3), std=0.1)
        with pytest.raises(ValueError, match="meta device"):
            RUNS_WITH_VALUES[name](nn.Linear(3, 2), x)


@pytest.mark.parametrize("method", ["diagonal", "sketch", "full"])
def test_shapes_can_be_found_on_the_meta_device(method: str) -> None:
    with default_device("meta"):
        y = ua.propagate(nn.Linear(3, 2), ua.Gaussian(torch.zeros(2, 3), std=0.1), method)
    assert y.shape == (2, 2)
    assert y.loc.is_meta


def test_a_function_of_which_vmap_forgets_the_stack() -> None:
    """``linalg.pinv`` of a matrix without elements."""
    x = ua.Gaussian(torch.tensor(0.1).double(), std=0.01)
    y = ua.propagate(lambda v: torch.linalg.pinv(torch.zeros(0, 0).double(), atol=v), x, "hybrid")
    assert y.shape == (0, 0)
