"""Pictures are convolved with their channels last, and nobody can tell."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.numerics.layout import fastest, has_channels_last, is_rearranged, usual


def picture(batch: int = 2) -> ua.Gaussian:
    generator = torch.Generator().manual_seed(batch)
    mean = torch.randn(batch, 3, 6, 8, generator=generator)
    return ua.Gaussian(mean, var=0.1 + torch.rand(batch, 3, 6, 8, generator=generator))


class Probed(nn.Module):
    """A convolution, something to see what comes out of it, and something to do with that."""

    def __init__(self, then: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.then = then
        self.seen: list[bool] = []
        self.eval().requires_grad_(False)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        mean = x.loc if isinstance(x, ua.Gaussian) else x
        self.seen.append(has_channels_last(mean))
        return self.then(x)


def calibrated(model: nn.Module, x: ua.Gaussian) -> dict[str, Any]:
    calibration = ua.calibrate(model, x.loc.clone(), std=0.3, samples=8)
    return {"method": "calibrated", "calibration": calibration}


@pytest.mark.parametrize("method", ["diagonal", "calibrated"])
def test_channels_are_last_inside_and_usual_outside(method: str) -> None:
    model, x = Probed(lambda y: y), picture()
    options = calibrated(model, x) if method == "calibrated" else {"method": method}
    model.seen.clear()
    y = ua.propagate(model, x, **options)
    assert model.seen == [True]
    assert y.loc.is_contiguous()
    assert y.cov.var.is_contiguous()
    if method == "diagonal":
        wanted = model(x)  # without a method nothing is rearranged
        assert model.seen == [True, False]
        torch.testing.assert_close(y.loc, wanted.loc)
        torch.testing.assert_close(y.cov.var, wanted.cov.var)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "view": lambda y: y.view(len(y), -1),
    "view_as": lambda y: y.view_as(y),
    "several dims": lambda y: y.view(len(y), 2, 2, 6, 8).sum(2),
    "flatten": lambda y: torch.flatten(y, 1),
    "reshape": lambda y: y.reshape(-1, 8),
    "permuted": lambda y: y.permute(0, 2, 3, 1).contiguous().view(len(y), -1, 4),
    "rows": lambda y: y[:, :, ::2].flatten(2),
    "pooled": lambda y: nn.functional.max_pool2d(y, 2).view(len(y), -1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_whatever_follows_is_the_same(name: str) -> None:
    model, x = Probed(VIEWS[name]), picture()
    found, wanted = ua.propagate(model, x, method="diagonal"), model(x)
    assert model.seen == [True, False]
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.cov.var, wanted.cov.var)


def doubled(cut: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Write to what may be a view, and answer with what it may be a view of."""

    def then(y: Any) -> Any:
        part = cut(y)
        part.mul_(2.0)
        return y

    return then


@pytest.mark.parametrize(
    "cut",
    [
        lambda y: y.view(len(y), -1),
        lambda y: y.flatten(1),
        lambda y: y.reshape(-1),
        lambda y: y.contiguous(),
        lambda y: y[0],
        lambda y: y.permute(0, 2, 3, 1),
        lambda y: y[[0]],  # a copy
        lambda y: y.permute(0, 2, 3, 1).reshape(-1),  # a copy
        lambda y: torch.relu(y.permute(0, 2, 3, 1)).reshape(-1),  # a copy
    ],
)
def test_what_is_a_view_in_torch_is_one_here(cut: Callable[[Any], Any]) -> None:
    model, x = Probed(doubled(cut)), picture()
    plain = ua.Gaussian(x.loc, var=0.0)
    found = ua.propagate(model, plain, method="diagonal")
    torch.testing.assert_close(found.loc, model(x.loc.clone()))
    noisy = ua.propagate(model, x, method="diagonal")
    torch.testing.assert_close(noisy.cov.var, model(x).cov.var)


def test_a_layout_of_the_users_own_stays() -> None:
    model, x = Probed(lambda y: y), picture()
    given = ua.Gaussian(
        x.loc.contiguous(memory_format=torch.channels_last),
        var=x.cov.var.contiguous(memory_format=torch.channels_last),
    )
    y = ua.propagate(model, given, method="diagonal")
    assert has_channels_last(y.loc)
    fastest(lambda: _assert(not is_rearranged(given.loc)), given.loc)


def test_a_view_of_a_part_is_one_here() -> None:
    """What has channels last no more, for want of a batch, is in another order all the same."""

    def then(y: Any) -> Any:
        part = torch.relu(y[0])
        part.view(-1).mul_(2.0)
        part.flatten().mul_(2.0)
        return part

    model, x = Probed(then), picture()
    found = ua.propagate(model, ua.Gaussian(x.loc, var=0.0), method="diagonal")
    torch.testing.assert_close(found.loc, model(x.loc.clone()))
    assert model.seen[:2] == [True, False]  # once in either layout


def test_gradients_leave_the_layout_alone() -> None:
    model, x = Probed(lambda y: y.flatten(1)), picture()
    trained = copy.deepcopy(model).requires_grad_(True)
    y = ua.propagate(trained, x, method="diagonal")
    assert trained.seen == [False]
    y.cov.var.sum().backward()
    grads = [p.grad for p in trained.parameters()]
    wanted = torch.autograd.grad(trained(x).cov.var.sum(), list(trained.parameters()))
    for grad, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_stay_as_they_are(dtype: torch.dtype) -> None:
    model, x = Probed(lambda y: y).to(dtype), picture()
    ua.propagate(model, ua.Gaussian(x.loc.to(dtype), var=0.25), method="diagonal")
    assert model.seen == [False]


@pytest.mark.filterwarnings("ignore:this processor has no instructions for bfloat16")
def test_rounded_variances_have_the_layout_too() -> None:
    model, x = Probed(lambda y: y.view(len(y), -1)), picture()
    y = ua.propagate(model, x, method="diagonal", var_dtype=torch.bfloat16)
    assert model.seen == [True]
    torch.testing.assert_close(y.cov.var, model(x).cov.var, rtol=0.02, atol=1e-6)


@pytest.mark.parametrize("part", ["whole", "a layer"])
def test_a_model_in_training_mode_is_run_once(part: str) -> None:
    model, x = Probed(doubled(lambda y: y.view(len(y), -1))), picture()
    (model if part == "whole" else model.second).train()
    ua.propagate(model, x, method="diagonal")
    assert model.seen == [False]


def test_an_input_that_is_written_to_is_left_alone() -> None:
    model, x = Probed(doubled(lambda y: y.view(len(y), -1))), picture()
    mean = x.loc.clone()
    y = ua.propagate(lambda t: model(t.mul_(2.0)), x, method="diagonal")
    assert model.seen == [True, False]
    assert torch.equal(x.loc, mean)
    torch.testing.assert_close(y.loc, model(2 * x).loc)


def test_rearranging_ends() -> None:
    x = torch.rand(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)

    def inside() -> Tensor:
        assert is_rearranged(x)
        return usual(x)

    inner = fastest(inside, torch.rand(1, 3, 4, 4))
    assert inner.is_contiguous()
    assert torch.equal(inner, x)
    assert not is_rearranged(x)
    with pytest.raises(ZeroDivisionError):
        fastest(lambda: 1 / 0, torch.rand(1, 3, 4, 4))
    assert not is_rearranged(x)


def _assert(holds: bool) -> None:
    assert holds
