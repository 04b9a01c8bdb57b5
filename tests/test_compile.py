"""Models on Gaussians under torch.compile and torch.export, without a break in the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua

from .cases import CASES, Case
from .oracles import random_input
from .versions import compiles

pytestmark = compiles

# Dynamo puts these two functions into its graph without asking their argument for
# __torch_function__, so they cannot be traced on a Gaussian yet.
NOT_TRACEABLE = {"hard_swish", "hardsigmoid"}


class Network(nn.Module):
    """Views, in-place operations, a skip connection, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Any) -> dict[str, Any]:
        h = self.act(self.norm(self.conv(x)))
        a, b = h.chunk(2, dim=1)
        a += nn.functional.relu(b)
        h = self.pool(torch.cat([a, b], 1) + h)
        score = self.head(torch.flatten(h, 1))
        return {"score": score, "difference": score[:, :1] - score[:, 1:]}


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    model = Network().eval()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    return model.double()


@pytest.fixture
def x() -> ua.Gaussian:
    return ua.Gaussian(torch.randn(3, 2, 4, 4, dtype=torch.float64), 0.2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operation_traces(case: Case) -> None:
    if case.name in ("mean", "div-method"):
        pytest.skip("torch.compile follows neither a callable tensor nor an unbound method")
    if case.label == "operator":
        pytest.skip("operators of torch.ops come from captured graphs, which are interpreted")
    if case.rule in NOT_TRACEABLE:
        pytest.skip("torch.compile does not ask for __torch_function__ here")
    torch._dynamo.reset()
    x = random_input(case.shape)
    eager = case.call(x)
    traced = torch.compile(case.call, fullgraph=True, backend="eager")(random_input(case.shape))
    torch.testing.assert_close(traced.loc, eager.loc, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(traced.cov.var, eager.cov.var, rtol=1e-12, atol=1e-14)


def test_inductor_agrees_with_eager(network: nn.Module, x: ua.Gaussian) -> None:
    torch._dynamo.reset()
    eager = network(x)
    with torch.no_grad():
        compiled = torch.compile(network, fullgraph=True)(x)
    for name, y in eager.items():
        torch.testing.assert_close(compiled[name].loc, y.loc)
        torch.testing.assert_close(compiled[name].cov.var, y.cov.var)


def test_gradients_under_compilation(network: nn.Module, x: ua.Gaussian) -> None:
    torch._dynamo.reset()

    def loss(y: dict[str, ua.Gaussian]) -> Tensor:
        return y["score"].loc.sum() + y["score"].cov.var.sum()

    loss(network(x)).backward()
    expected = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad()
    loss(torch.compile(network, fullgraph=True, backend="aot_eager")(x)).backward()
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.grad, expected[name])


class OnPairs(nn.Module):
    """A model as a function of plain tensors, which is what export wants."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        y = self.model(ua.Gaussian(mean, var))["score"]
        return y.loc, y.cov.var


def test_export_gives_a_plain_graph(network: nn.Module, x: ua.Gaussian) -> None:
    program = torch.export.export(OnPairs(network), (x.loc, x.cov.var))
    mean, var = program.module()(x.loc, x.cov.var)
    y = network(x)["score"]
    torch.testing.assert_close(mean, y.loc)
    torch.testing.assert_close(var, y.cov.var)
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert all(t.startswith(("aten.", "<built-in function getitem>")) for t in targets), targets


def test_products_from_either_side_are_told_apart_or_refused(x: ua.Gaussian) -> None:
    """Dynamo hands over W @ x and x @ W in the same way if x is a Gaussian."""
    given = ua.Gaussian(torch.randn(3, 4, dtype=torch.float64), 0.1)
    right, left = torch.randn(4, 2, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    for function in (lambda x: x @ right, lambda x: left @ x):
        traced = torch.compile(function, fullgraph=True, backend="eager")
        torch.testing.assert_close(traced(given).loc, function(given.loc))
    square = torch.randn(4, 4, dtype=torch.float64)
    for function in (lambda x: x @ square, lambda x: square @ x):
        with pytest.raises(Exception, match="matmul_method"):
            torch.compile(function, fullgraph=True, backend="eager")(x)


WINDOWS = {
    "overlapping": (lambda x: nn.functional.max_pool2d(x, 3, 2, 1), (2, 3, 7, 6)),
    "apart": (lambda x: nn.functional.max_pool2d(x, 2), (2, 3, 6, 6)),
    "dilated, ceil": (lambda x: nn.functional.max_pool2d(x, 2, 3, 1, 2, True), (2, 3, 7, 6)),
    "one channel": (lambda x: nn.functional.max_pool2d(x, 3, 2, 1), (2, 1, 7, 6)),
    "no batch": (lambda x: nn.functional.max_pool2d(x, 3, 2), (3, 7, 7)),
    "each by itself": (lambda x: nn.functional.max_pool2d(x, 1), (2, 3, 4, 4)),
    "1d": (lambda x: nn.functional.max_pool1d(x, 3, 1), (2, 3, 7)),
    "3d": (lambda x: nn.functional.max_pool3d(x, 2, 1), (1, 2, 3, 4, 3)),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_max_pooling_is_an_operation_of_the_compiled_graph(name: str, channels_last: bool) -> None:
    """One that Inductor does not look into, in memory of its own and laid out as was promised."""
    torch._dynamo.reset()
    pool, shape = WINDOWS[name]
    mean, var = torch.randn(shape).double(), torch.rand(shape).double()
    mean.flatten()[:5] = -torch.inf
    if channels_last and len(shape) == 4:
        mean, var = (t.contiguous(memory_format=torch.channels_last) for t in (mean, var))
    seen: list[Any] = []

    def graph(module: Any, _: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module

    def run(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        y = pool(ua.Gaussian(mean, var))
        return y.loc, y.cov.var

    with torch.no_grad():
        found = torch.compile(run, fullgraph=True, backend=graph)(mean, var)
        operation = torch.ops.uaprop.largest_in_windows.default
        assert "uaprop.largest_in_windows" in seen
        torch.testing.assert_close(found, run(mean, var), rtol=1e-12, atol=1e-12)
        if name != "no batch":
            dims = len(shape) - 2
            numbers = [[2] * dims, [2] * dims, [1] * dims, [1] * dims, True]
            checks = ("test_schema", "test_faketensor")
            torch.library.opcheck(operation, (mean, var, *numbers), test_utils=checks)


def test_max_pooling_has_gradients_under_compilation() -> None:
    torch._dynamo.reset()
    mean, var = torch.randn(2, 3, 7, 6), torch.rand(2, 3, 7, 6)

    def gradients(pool: Any) -> tuple[Tensor, ...]:
        given = [t.clone().requires_grad_() for t in (mean, var)]
        return torch.autograd.grad(sum(t.square().sum() for t in pool(*given)), given)

    def run(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        y = nn.functional.max_pool2d(ua.Gaussian(mean, var), 3, 2, 1)
        return y.loc, y.cov.var

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled), gradients(run))
