"""Gaussians in trees: what takes one apart and puts it together again is right, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import uaprop as ua


def noisy(*shape: int) -> ua.Gaussian:
    generator = torch.Generator().manual_seed(0)
    return ua.Gaussian(
        torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    )


def same(found: Any, wanted: ua.Gaussian) -> None:
    assert isinstance(found, ua.Gaussian)
    torch.testing.assert_close(found.loc, wanted.loc)
    torch.testing.assert_close(found.cov.var, wanted.cov.var)


FUNCTIONS = {
    "scaled": lambda t: 2 * t,
    "shifted": lambda t: t + 1,
    "negated": lambda t: -t,
    "method": lambda t: t.mul(3).sub_(1),
    "sum": lambda t: t.sum(-1),
    "mean": lambda t: t.mean(dim=-1, keepdim=True),
    "indexed": lambda t: t[..., :2],
    "rearranged": lambda t: t.flatten(),
    "relu": torch.relu,
    "inplace": lambda t: F.relu(t.clone(), inplace=True),
    "converted": lambda t: t.to(torch.float64),
    "resized": lambda t: F.interpolate(t[None], scale_factor=2.0),
    "joined": lambda t: torch.cat([t, t.new_zeros(t.shape)]),
    "transposed": lambda t: t.mT,
    "matrix": lambda t: t @ torch.ones(t.shape[-1], 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_every_tensor_is_the_function_of_a_gaussian(name: str) -> None:
    function, x = FUNCTIONS[name], noisy(2, 3)
    tree = {"x": [x, torch.ones(2, 3)], "n": None}
    found = pytree.tree_map_only(Tensor, function, tree)
    same(found["x"][0], function(x))
    assert torch.equal(found["x"][1], function(torch.ones(2, 3)))


def test_correlation_is_kept() -> None:
    x = ua.Gaussian.from_factors(torch.zeros(3), torch.randn(2, 3))
    found = pytree.tree_map(lambda t: 2 * t, x)
    assert (found - 2 * x).cov.var.abs().max() < 1e-10


def test_what_is_only_taken_apart_is_put_together_again() -> None:
    x = noisy(2, 3)
    leaves, spec = pytree.tree_flatten((x, 1))
    assert pytree.tree_unflatten(leaves, spec)[0] is x
    assert pytree.tree_map(lambda leaf: leaf, x) is x


def test_a_leaf_shows_what_it_is() -> None:
    (leaf,) = pytree.tree_leaves(noisy(2, 3))
    assert isinstance(leaf, Tensor)
    assert repr(leaf) == repr(noisy(2, 3))
    assert leaf.shape == (2, 3)
    assert leaf.dtype == torch.float32
    assert leaf.is_floating_point()
    assert len(leaf) == 2
    assert {leaf: 1}[leaf] == 1
    assert [part.shape for part in leaf] == [(3,), (3,)]


def test_a_tree_of_something_else_may_come_of_it() -> None:
    tree = {"x": noisy(2, 3)}
    assert pytree.tree_map(lambda t: t.shape, tree) == {"x": (2, 3)}
    assert torch.equal(pytree.tree_map(torch.zeros_like, tree)["x"], torch.zeros(2, 3))


class Squared(torch.autograd.Function):
    """A function of another package, which sees tensors only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.square()


@pytest.mark.parametrize(
    "function",
    [
        lambda t: t.numpy(),
        lambda t: t.tolist(),
        lambda t: torch.tensor(t),
        lambda t: t.data,
        lambda t: torch.empty(2, 3).copy_(t),
        lambda t: torch._C._nn.gelu(t.as_subclass(Tensor)),
        lambda t: t > 0,
        lambda t: torch.fft.fft(t),
    ],
)
def test_the_mean_alone_does_not_get_out(function: Any) -> None:
    with pytest.raises(ua.UnsupportedOperation):
        pytree.tree_map(function, noisy(2, 3))


def test_values_are_not_read_past_the_rules() -> None:
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(ua.UnsupportedOperation):
        pytree.tree_map(lambda t: t * 2, noisy(2, 3))


def test_a_function_of_autograd_is_right() -> None:
    same(pytree.tree_map(Squared.apply, noisy(2, 3)), noisy(2, 3).square())


class Walks(nn.Module):
    """Takes its input apart as torchvision's transforms do: the first tensor is the image."""

    def forward(self, x: Any) -> Any:
        leaves, spec = pytree.tree_flatten(x)
        leaves[0] = leaves[0].sub(0.5).div_(0.2)
        return pytree.tree_unflatten(leaves, spec)


@pytest.fixture
def walking() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Walks(), nn.Linear(3, 2), nn.ReLU()).eval()


@pytest.fixture
def plain(walking: nn.Module) -> nn.Module:
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3) / 0.2)
        layer.bias.fill_(-0.5 / 0.2)
    return nn.Sequential(layer, *walking[1:]).eval()


@pytest.mark.parametrize(
    "method", ["diagonal", "sketch", "adjoint", "hybrid", "linear", "full", "auto"]
)
def test_a_model_that_walks_trees_is_right(
    walking: nn.Module, plain: nn.Module, method: str
) -> None:
    found, wanted = (ua.propagate(model, noisy(4, 3), method) for model in (walking, plain))
    torch.testing.assert_close(found.loc, wanted.loc, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.cov.var, wanted.cov.var, rtol=1e-4, atol=1e-5)


def test_coverage_sees_what_is_done_in_trees(walking: nn.Module) -> None:
    names = {operation.name for operation in ua.coverage(walking, noisy(4, 3)).operations}
    assert {"torch.Tensor.sub", "torch.Tensor.div_"} <= names


def test_so_is_one_that_is_exported_or_compiled(walking: nn.Module, plain: nn.Module) -> None:
    x = noisy(4, 3)
    wanted = plain(x)
    module = ua.as_module(walking)
    for run in (
        torch.export.export(module, (x.loc, x.cov.var), strict=False).module(),
        torch.compile(module, fullgraph=True, backend="aot_eager"),
    ):
        mean, var = run(x.loc, x.cov.var)
        torch.testing.assert_close(mean, wanted.loc)
        torch.testing.assert_close(var, wanted.cov.var)


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_that_walks_trees_is_refused(walking: nn.Module, whole: bool) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match="tree_flatten"):
        torch.compile(walking, fullgraph=whole, backend="eager")(noisy(4, 3))


def test_vectorised_and_exported_models_take_gaussians(
    walking: nn.Module, plain: nn.Module
) -> None:
    x = noisy(4, 3)
    same(torch.vmap(plain)(x), plain(x))
    same(torch.vmap(walking)(x), plain(x))
    same(torch.export.export(plain, (x,)).module()(x), plain(x))
    same(torch.export.export(walking, (x,)).module()(x), plain(x))


def test_a_result_is_not_vectorised_with_the_covariance_of_all() -> None:
    y = ua.propagate(nn.Identity(), noisy(4, 3), "linear")
    with pytest.raises(ua.UnsupportedOperation, match="shapes that do not fit"):
        torch.vmap(lambda t: t)(y)


@pytest.mark.parametrize(("method", "options"), [("auto", {}), ("hybrid", {"samples": 64})])
def test_tuples_of_torchs_own_kind(method: str, options: dict[str, Any]) -> None:
    """They come as such from tensors, and as plain tuples from Gaussians."""
    x = ua.Gaussian(torch.randn(3, 80, generator=torch.Generator().manual_seed(1)), std=0.1)
    low, high = ua.propagate(lambda x: torch.aminmax(x, dim=1), x, method, **options)
    truth = ua.propagate(lambda x: x.amax(1), x, "samples", samples=4000, seed=5)
    torch.testing.assert_close(high.std + 0, truth.std + 0, rtol=0.3, atol=0)
    assert low.shape == (3,)
