"""The value itself: construction, errors at the boundary, the tensor-like interface."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import uaprop as ua


def test_var_and_std_say_the_same() -> None:
    mean = torch.randn(2, 3)
    a = ua.Gaussian(mean, 0.04)
    b = ua.Gaussian(mean, std=0.2)
    torch.testing.assert_close(a.var, b.var)
    torch.testing.assert_close(a.std, torch.full((2, 3), 0.2))
    assert a.shape == (2, 3)
    assert (a.ndim, a.dim(), a.size(), a.size(1), a.numel(), len(a)) == (2, 2, (2, 3), 3, 6, 2)
    assert a.dtype == torch.float32
    assert a.device == mean.device


@pytest.mark.parametrize("mean", [1.5, [1.0, 2.0], np.ones(3, dtype=np.float32)])
def test_mean_may_be_anything_that_makes_a_tensor(mean: object) -> None:
    x = ua.Gaussian(mean, 1.0)  # type: ignore[arg-type]
    assert torch.equal(x.mean, torch.as_tensor(mean))


def test_mean_and_variance_broadcast() -> None:
    assert ua.Gaussian(torch.zeros(3, 1), torch.ones(4)).shape == (3, 4)
    assert ua.Gaussian(torch.zeros(()), torch.ones(2, 2)).mean.shape == (2, 2)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"var": -1.0}, ValueError, "negative"),
        ({"var": torch.tensor([1.0, -1e-9, 2.0])}, ValueError, "negative"),
        ({"var": math.nan}, ValueError, "NaN"),
        ({"var": torch.tensor([1.0, math.nan, 2.0])}, ValueError, "NaN"),
        ({"var": math.inf}, ValueError, "infinite"),
        ({"std": -0.1}, ValueError, "std must be"),
        ({"std": math.nan}, ValueError, "NaN"),
        ({"var": torch.ones(4)}, ValueError, "do not broadcast"),
        ({}, TypeError, "neither"),
        ({"var": 1.0, "std": 1.0}, TypeError, "both"),
        ({"var": torch.ones(3, device="meta")}, ValueError, "meta"),
    ],
)
def test_bad_variance_is_refused(kwargs: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ua.Gaussian(torch.zeros(3), **kwargs)


def test_integers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"floating-point.*float\(\)"):
        ua.Gaussian(torch.tensor([1, 2]), 1.0)


def test_mean_is_a_tensor_and_an_average() -> None:
    x = ua.Gaussian(torch.randn(2, 3, 4), torch.rand(2, 3, 4))
    assert isinstance(x.mean, torch.Tensor)
    assert type(x.mean + 1) is torch.Tensor
    averaged = x.mean([1, 2])
    assert isinstance(averaged, ua.Gaussian)
    torch.testing.assert_close(averaged.mean, x.mean.mean([1, 2]))
    torch.testing.assert_close(averaged.var, x.var.sum([1, 2]) / 144)
    assert repr(x.mean).startswith("tensor(")
    assert type(copy.deepcopy(x.mean)) is torch.Tensor
    assert type(pickle.loads(pickle.dumps(x.mean))) is torch.Tensor
    assert x.mean.numpy().shape == (2, 3, 4)


def test_samples_have_the_moments() -> None:
    x = ua.Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.0]))
    draws = x.sample(50_000, generator=torch.Generator().manual_seed(1))
    assert draws.shape == (50_000, 2)
    torch.testing.assert_close(draws.mean(0), x.loc, atol=0.05, rtol=0)
    torch.testing.assert_close(draws.var(0), x.cov.var, atol=0.1, rtol=0)
    with pytest.raises(ValueError, match="at least 1"):
        x.sample(0)


def test_log_prob_is_torchs() -> None:
    x = ua.Gaussian(torch.randn(3), torch.rand(3) + 0.1)
    at = torch.randn(5, 3)
    normal = torch.distributions.Normal(x.loc, x.cov.var.sqrt())
    torch.testing.assert_close(x.log_prob(at), normal.log_prob(at))
    point = ua.Gaussian(torch.zeros(2), 0.0).log_prob(torch.tensor([0.0, 1.0]))
    assert point.tolist() == [math.inf, -math.inf]


def test_covariance_is_per_batch_element() -> None:
    var = torch.rand(2, 3)
    dense = ua.Gaussian(torch.zeros(2, 3), var).covariance()
    assert torch.equal(dense, torch.diag_embed(var))
    assert ua.Gaussian(torch.zeros(4), 1.0).covariance().shape == (4, 4)
    assert ua.Gaussian(torch.zeros(2, 3, 4), 1.0).covariance().shape == (2, 12, 12)


def test_it_moves_and_converts() -> None:
    x = ua.Gaussian(torch.randn(2, requires_grad=True), 1.0)
    assert x.requires_grad
    assert not x.detach().requires_grad
    y = x.to(torch.float64)
    assert y.dtype == torch.float64
    assert y.var.dtype == torch.float64
    assert x.to("cpu").device.type == "cpu"
    assert x.half().std.dtype == torch.float16
    with pytest.raises(ua.UnsupportedOperation, match="int64"):
        x.to(torch.int64)


def test_it_is_a_pytree() -> None:
    x = ua.Gaussian(torch.randn(2, 3), 0.5)
    leaves, spec = pytree.tree_flatten({"x": x})
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = pytree.tree_unflatten(leaves, spec)["x"]
    assert torch.equal(again.mean, x.mean)
    assert torch.equal(again.var, x.var)
    doubled = pytree.tree_map(lambda t: 2 * t, x)
    assert torch.equal(doubled.mean, 2 * x.mean)
    assert torch.equal(doubled.var, 4 * x.var)


def test_operators_and_their_reflections() -> None:
    x = ua.Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([1.0, 4.0]))
    t = torch.tensor([3.0, 5.0])
    for y, mean, var in (
        (x + t, [4, 3], [1, 4]),
        (t + x, [4, 3], [1, 4]),
        (x - t, [-2, -7], [1, 4]),
        (t - x, [2, 7], [1, 4]),
        (1 - x, [0, 3], [1, 4]),
        (x * t, [3, -10], [9, 100]),
        (t * x, [3, -10], [9, 100]),
        (2 * x, [2, -4], [4, 16]),
        (x / 2, [0.5, -1], [0.25, 1]),
        (-x, [-1, 2], [1, 4]),
        (+x, [1, -2], [1, 4]),
        (x + x, [2, -4], [4, 16]),
        (x - x, [0, 0], [0, 0]),
        (x**2, [2, 8], [6, 96]),
        (x * x, [2, 8], [6, 96]),
    ):
        torch.testing.assert_close(y.loc, torch.tensor(mean, dtype=torch.float32))
        torch.testing.assert_close(y.cov.var, torch.tensor(var, dtype=torch.float32))
    assert (x @ torch.ones(2)).var == 5
    assert (torch.ones(3, 2) @ x).shape == (3,)


def test_promotion_reaches_the_variance() -> None:
    x = ua.Gaussian(torch.zeros(2), 1.0)
    wide = torch.ones(2, dtype=torch.float64)
    for y in (x + wide, wide - x, x * wide, x / wide, torch.cat([x, wide])):
        assert y.loc.dtype == y.cov.var.dtype == torch.float64


def test_repr_says_what_it_is() -> None:
    assert repr(ua.Gaussian(torch.tensor([1.0, 2.0]), std=0.5)) == (
        "Gaussian(2, torch.float32, diagonal, mean=[1.0, 2.0], std=[0.5, 0.5])"
    )
    large = repr(ua.Gaussian(torch.zeros(3, 8, 8), 4.0))
    assert large == "Gaussian(3×8×8, torch.float32, diagonal, mean in [0, 0], std in [2, 2])"
    assert repr(ua.Gaussian(torch.zeros(0), 1.0)) == "Gaussian(0, torch.float32, diagonal)"
    assert "scalar" in repr(ua.Gaussian(1.0, 1.0))


def test_what_cannot_be_answered_is_refused() -> None:
    x = ua.Gaussian(torch.randn(2, 3), 1.0)
    with pytest.raises(TypeError, match="truth value"):
        bool(x)
    with pytest.raises(TypeError, match="not an array"):
        np.asarray(x)
    with pytest.raises(ua.UnsupportedOperation, match=r"torch\.gt"):
        _ = x > 0
    with pytest.raises(ua.UnsupportedOperation, match="item"):
        x[0, 0].item()
    with pytest.raises(AttributeError, match="colour"):
        _ = x.colour
    assert len({x, x.clone()}) == 2  # hashed by identity
    assert not x.is_nested
    with pytest.raises(TypeError, match="0-d"):
        len(ua.Gaussian(1.0, 1.0))
    with pytest.raises(TypeError, match="Gaussian already"):
        ua.Gaussian(x, 1.0)  # type: ignore[arg-type]


def test_iteration_and_transposes() -> None:
    x = ua.Gaussian(torch.randn(2, 3), torch.rand(2, 3))
    assert [row.shape for row in x] == [(3,), (3,)]
    assert torch.equal(x.T.var, x.var.T)
    assert torch.equal(x.mT.mean, x.mean.mT)


@pytest.mark.parametrize(
    "name", ["zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"]
)
def test_constants_in_its_likeness_are_plain(name: str) -> None:
    x = ua.Gaussian(torch.randn(2, 3, dtype=torch.float64), 1.0)
    made = getattr(torch, name)(x)
    assert type(made) is torch.Tensor
    assert made.shape == x.shape
    assert made.dtype == x.dtype


def test_questions_have_plain_answers() -> None:
    x = ua.Gaussian(torch.randn(2, 3), 1.0)
    assert torch.is_floating_point(x)
    assert x.is_floating_point()
    assert not x.is_complex()
    assert torch.numel(x) == 6
    assert x.is_contiguous()
    assert x.stride() == (3, 1)
    assert x.element_size() == 4
    assert x.get_device() == -1
    assert x.storage_offset() == 0
    assert not x.is_cuda
    assert x.layout == torch.strided
    assert torch.full_like(x, 2.0).sum() == 12
    assert x.new_zeros(2).dtype == x.dtype
    assert x.new_ones(2).sum() == 2
    assert x.new_full((2,), 3.0).sum() == 6
    assert x.new_empty(2).shape == (2,)
    assert x.new_tensor([1.0]).item() == 1
