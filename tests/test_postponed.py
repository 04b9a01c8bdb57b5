"""A batch norm behind a convolution: folded where a program is traced, and the same numbers everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import uaprop as ua

from .versions import skip_unless_compiles


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


def test_gradients_with_and_without_a_method_are_the_same() -> None:
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


def compiled_operations(
    model: nn.Module, x: ua.Gaussian
) -> tuple[tuple[Tensor, Tensor], list[str]]:
    """What a compiled diagonal pass answers, and the operations that are left for Inductor."""
    skip_unless_compiles()
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
