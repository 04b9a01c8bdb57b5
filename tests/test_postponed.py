"""Variances behind a convolution that wait for a batch norm: the same numbers, with fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import uaprop as ua
from uaprop.covariance import Diagonal
from uaprop.covariance.postponed import Postponed, postponing


def normed(channels: int, dims: int) -> nn.Module:
    norm = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][dims - 1](channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.2, 3)
    return norm


def conv_norm(dims: int, **options: Any) -> nn.Module:
    kind = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1]
    return nn.Sequential(kind(4, 6, 3, padding=1, **options), normed(6, dims)).double().eval()


def noisy(*shape: int) -> ua.Gaussian:
    return ua.Gaussian(torch.randn(shape).double(), torch.rand(shape).double())


class Squares:
    """Counts the convolutions of variances, and batch norms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computed: list[str] = []
        for name in ("value", "times"):
            plain = getattr(Postponed, name)

            def counted(waiting: Postponed, *args: Tensor, n: str = name, f: Any = plain) -> Tensor:
                self.computed.append(n)
                return f(waiting, *args)

            monkeypatch.setattr(Postponed, name, counted)


@pytest.mark.parametrize("size", [3, 12])  # fewer elements than weights, and more
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"groups": 2, "stride": 2}, {"bias": False}], ids=str)
def test_a_norm_goes_into_the_convolution(
    dims: int, size: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = conv_norm(dims, **options), noisy(2, 4, *[size] * dims)
    seen = Squares(monkeypatch)
    with torch.no_grad():
        found = ua.propagate(model, x, method="diagonal")
        assert seen.computed == ["times"]
        plain = model(x)  # outside of propagate nothing waits
    assert len(seen.computed) == 1
    torch.testing.assert_close(found.loc, plain.loc)
    torch.testing.assert_close(found.var, plain.var, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [3, 12])  # fewer elements than weights, and more
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"groups": 2, "stride": 2}, {"bias": False}], ids=str)
@pytest.mark.parametrize("method", ["sketch", "adjoint"])
def test_a_norm_goes_into_the_convolution_of_factors(
    method: str, dims: int, size: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = conv_norm(dims, **options), noisy(2, 4, *[size] * dims)
    network = lambda x: F.gelu(model(x)).flatten(2).mean(2)  # noqa: E731
    apart = lambda x: F.gelu(model[1](model[0](x) * 1.0)).flatten(2).mean(2)  # noqa: E731
    seen = Squares(monkeypatch)
    ua.propagate(network, x, method=method, probes=8)
    # the weights' gradients are wanted of a sketch, but of no probes that are beside a mean
    assert seen.computed == ([] if method == "sketch" else ["times"])
    seen.computed.clear()
    with torch.no_grad():
        found = ua.propagate(network, x, method=method, probes=8)
        assert seen.computed == ["times"]
        expected = ua.propagate(apart, x, method=method, probes=8)
    assert seen.computed == ["times", "value"]
    torch.testing.assert_close(found.loc, expected.loc)
    torch.testing.assert_close(found.covariance(), expected.covariance(), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("piece", [1, 1000])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_large_stacks_go_through_in_pieces(
    piece: int, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = conv_norm(2).to(memory_format=layout), noisy(3, 4, 10, 10)
    mean, var = (t.contiguous(memory_format=layout) for t in (x.loc, x.cov.var))
    with torch.no_grad():
        whole = ua.propagate(model, ua.Gaussian(mean, var), method="sketch", probes=5)
        monkeypatch.setattr("uaprop.covariance.postponed._WHOLE", 0)
        monkeypatch.setattr("uaprop.covariance.postponed._PIECE", piece)
        parts = ua.propagate(model, ua.Gaussian(mean, var), method="sketch", probes=5)
    torch.testing.assert_close(parts.cov.values, whole.cov.values)
    assert parts.cov.values.stride() == whole.cov.values.stride()


def test_factors_in_half_precision_and_their_gradients() -> None:
    torch.manual_seed(0)
    model, x = conv_norm(2), noisy(2, 4, 16, 16)
    exact = ua.propagate(model, x, method="sketch", probes=8)
    with torch.no_grad():
        half = ua.Gaussian(x.loc.half(), x.cov.var.half())
        halved = ua.propagate(model.half(), half, method="sketch", probes=8)
    assert halved.cov.values.dtype == torch.float16
    torch.testing.assert_close(halved.std.double(), exact.std.detach(), rtol=0.02, atol=1e-2)
    model = model.double()
    results = []
    for run in (lambda x: model(x), lambda x: model[1](model[0](x) * 1.0)):
        model.zero_grad()
        ua.propagate(run, x, method="sketch", probes=8).var.sum().backward()
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*results)
    assert any(g.abs().sum() > 0 for g in results[0])


MODELS: dict[str, tuple[Callable[[nn.Module, Any], Any], list[str]]] = {
    "asked twice": (lambda m, x: (m[0](x), m(x)), ["value", "times"]),
    "rectified in between": (lambda m, x: m[1](F.relu(m[0](x))), ["value"]),
    "a view": (lambda m, x: m[1](m[0](x).flip(2)), ["value"]),
    "written to": (lambda m, x: m[1](m[0](x).mul_(2)), ["value"]),
    "added": (lambda m, x: m[1](m[0](x) + x[:, :1]), ["value"]),
    "last": (lambda m, x: m[0](x), ["value"]),
    "the mean alone": (lambda m, x: m[0](x).mean * 2, []),
    "the input is written to": (lambda m, x: _written_to(m, x), ["times"]),
}


def _written_to(model: nn.Module, x: Any) -> Any:
    y = x * 2
    z = model[0](y)
    y.zero_()  # another value for y; z was made from the old one
    return model[1](z)


@pytest.mark.parametrize("name", MODELS)
def test_whatever_comes_next(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    function, computed = MODELS[name]
    model, x = conv_norm(2), noisy(2, 4, 8, 8)
    seen = Squares(monkeypatch)
    with torch.no_grad():
        found = ua.propagate(lambda x: function(model, x), x, method="diagonal")
        assert sorted(seen.computed) == sorted(computed)
        plain = function(model, x)
    found, plain = (y if isinstance(y, tuple) else (y,) for y in (found, plain))
    for y, z in zip(found, plain, strict=True):
        if isinstance(y, ua.Gaussian):
            assert y.cov.waiting is None
            torch.testing.assert_close(y.var, z.var, rtol=1e-12, atol=0)


def test_gradients_do_not_wait() -> None:
    torch.manual_seed(0)
    model, x = conv_norm(2), noisy(2, 4, 8, 8)
    results = []
    for run in (lambda: ua.propagate(model, x, method="diagonal"), lambda: model(x)):
        model.zero_grad()
        run().var.sum().backward()
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*results)
    assert any(g.abs().sum() > 0 for g in results[0])
    model[0].requires_grad_(False)  # a frozen convolution: the norm's gradient is still wanted
    model.zero_grad()
    ua.propagate(model, x, method="diagonal").var.sum().backward()
    torch.testing.assert_close(model[1].weight.grad, results[1][1])


def test_weights_written_to_meanwhile_are_refused() -> None:
    model, x = conv_norm(2), noisy(2, 4, 8, 8)
    kept: list[ua.Gaussian] = []

    def careless(x: Any) -> Any:
        kept.append(model[0](x))
        model[0].weight.mul_(2)
        return model[1](x[:, :1].expand(-1, 6, -1, -1))

    with torch.no_grad():
        ua.propagate(careless, x, method="diagonal")
        with pytest.raises(RuntimeError, match="written to in place between a convolution"):
            _ = kept[0].var


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_modes(context: Any) -> None:
    """Inference mode has no versions; autocast may be on where the variances are asked for."""
    torch.manual_seed(0)
    model, kept = conv_norm(2).float(), []
    x = ua.Gaussian(torch.randn(2, 4, 8, 8), torch.rand(2, 4, 8, 8))
    expected = model[0](x).cov.var.detach()

    def hooked(x: Any) -> Any:
        y = model[0](x)
        kept.append(y)
        return model[1](y)

    with context():
        ua.propagate(hooked, x, method="diagonal")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            var = kept[0].cov.var
    torch.testing.assert_close(var.clone(), expected)
    assert isinstance(kept[0].cov, Diagonal)


def test_dtypes() -> None:
    """Half precision, and variances summed up in bfloat16."""
    torch.manual_seed(0)
    model, x = conv_norm(2), noisy(2, 4, 16, 16)
    exact = ua.propagate(model, x, method="diagonal").std.detach()
    single = ua.Gaussian(x.loc.float(), x.cov.var.float())
    with torch.no_grad():
        low = ua.propagate(model.float(), single, method="diagonal", var_dtype=torch.bfloat16)
        half = ua.Gaussian(x.loc.half(), x.cov.var.half())
        halved = ua.propagate(model.half(), half, method="diagonal")
    torch.testing.assert_close(low.std.double(), exact, rtol=0.01, atol=0)
    assert halved.var.dtype == torch.float16
    torch.testing.assert_close(halved.std.double(), exact, rtol=0.01, atol=1e-3)


def test_it_is_for_one_thread_and_ends() -> None:
    model, x = conv_norm(2), noisy(2, 4, 8, 8)
    with torch.no_grad():
        with postponing():
            assert model[0](x).cov.waiting is not None
        assert model[0](x).cov.waiting is None


def compiled_operations(
    model: nn.Module, x: ua.Gaussian
) -> tuple[tuple[Tensor, Tensor], list[str]]:
    """What a compiled diagonal pass answers, and the operations that are left for Inductor."""
    torch._dynamo.reset()
    seen: list[str] = []

    def graph(module: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=graph)
    run = torch.compile(ua.as_module(model, "diagonal"), fullgraph=True, backend=backend)
    return run(x.loc, x.cov.var), seen


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"groups": 2, "stride": 2}, {"bias": False}], ids=str)
def test_compiled_the_mean_is_folded_too(dims: int, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = conv_norm(dims, **options), noisy(2, 4, *[9] * dims)
    with torch.no_grad():
        (mean, var), seen = compiled_operations(model, x)
        plain = model(x)
    torch.testing.assert_close(mean, plain.loc, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(var, plain.var, rtol=1e-10, atol=0)
    assert sum("conv" in name for name in seen) == 2
    assert not any("batch_norm" in name for name in seen)


def test_compiled_with_gradients_or_few_digits_nothing_is_folded() -> None:
    torch.manual_seed(0)
    model, x = conv_norm(2), noisy(2, 4, 8, 8)
    model[0].requires_grad_(False)
    (_, var), seen = compiled_operations(model, x)
    assert any("batch_norm" in name for name in seen)
    var.sum().backward()
    expected = torch.autograd.grad(model(x).var.sum(), model[1].weight)[0]
    torch.testing.assert_close(model[1].weight.grad, expected)
    model, x = model.bfloat16(), ua.Gaussian(x.loc.bfloat16(), x.var.bfloat16())
    with torch.no_grad():
        _, seen = compiled_operations(model, x)
    assert any("batch_norm" in name for name in seen)


def test_compiled_a_convolution_that_is_asked_twice() -> None:
    torch.manual_seed(0)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = conv_norm(2)

        def forward(self, x: Any) -> Any:
            y = self.inner[0](x)
            return self.inner[1](y) + y

    model, x = Twice(), noisy(2, 4, 8, 8)
    with torch.no_grad():
        (mean, var), _ = compiled_operations(model, x)
        plain = model(x)
    torch.testing.assert_close(mean, plain.loc, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(var, plain.var, rtol=1e-10, atol=0)
