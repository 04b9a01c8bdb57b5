"""Convolutions of compiled programs: with kept weights the same numbers as without, also after a change."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import uaprop as ua
from uaprop.numerics import frozen

from .versions import compiles, skip_unless_compiles

OPERATION = torch.ops.uaprop.frozen_convolution
TOGETHER = torch.ops.uaprop.frozen_convolutions
HOW = {
    "plain": ([1, 1], [0, 0], [1, 1], 1),
    "padded": ([2, 1], [1, 2], [1, 1], 1),
    "grouped": ([1, 1], [1, 1], [1, 1], 2),
    "dilated": ([1, 2], [2, 1], [2, 1], 1),
}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    frozen._kept.clear()
    yield
    frozen._kept.clear()
    torch.compiler.reset()


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding="same"),
        nn.BatchNorm2d(4),
    )
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            randomise(module)
    return model.eval()


def randomise(norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.normal_()
        norm.bias.normal_()


def marginals(batch: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(batch, 3, 9, 8, generator=generator)
    return mean, torch.rand(batch, 3, 9, 8, generator=generator)


def compiled(module: nn.Module, **options: Any) -> Callable[..., Any]:
    """Without Inductor, which takes its time and does nothing more to what is tested here."""
    skip_unless_compiles()
    return torch.compile(module, fullgraph=True, backend="aot_eager", **options)


def assert_alike(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("library", [False, True])
def test_the_operation(name: str, power: int, scaled: bool, library: bool) -> None:
    how = HOW[name]
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 4 // how[-1], 3, 3))
    factor, shift = (torch.randn(6), torch.randn(6)) if scaled else (None, None)
    derived = weight.detach() ** power * (1 if factor is None else factor.view(-1, 1, 1, 1))
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=library):
        for batch in (3, 0, 3):
            x = torch.randn(batch, 4, 9, 8)
            found = OPERATION(x, weight, power, factor, shift, *how)
            torch.testing.assert_close(
                found, F.conv2d(x, derived, shift, *how), rtol=1e-5, atol=1e-5
            )
            assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", HOW)
def test_mean_and_variance_together(name: str) -> None:
    how = HOW[name]
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 4 // how[-1], 3, 3))
    factor, shift, mean, var = *torch.randn(2, 6), *torch.rand(2, 3, 4, 9, 8)
    with torch.no_grad():
        found = TOGETHER(mean, var, weight, factor, shift, *how)
        expected = (
            OPERATION(mean, weight, 1, factor, shift, *how),
            OPERATION(var, weight, 2, factor.square(), None, *how),
        )
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_what_torch_asks_of_an_operation() -> None:
    x, weight = torch.randn(2, 4, 9, 8), nn.Parameter(torch.randn(6, 4, 3, 3), requires_grad=False)
    factor, shift = torch.rand(2, 6)
    checks = torch.library.opcheck(OPERATION.default, (x, weight, 2, factor, None, *HOW["padded"]))
    checks |= torch.library.opcheck(
        TOGETHER.default, (x, x.square(), weight, factor, shift, *HOW["padded"])
    )
    assert set(checks.values()) == {"SUCCESS"}


@compiles
def test_a_compiled_program_keeps_weights_and_follows_them() -> None:
    """Eager propagation, which keeps nothing, is the oracle after each change."""
    model = network()
    module = ua.as_module(model).eval()
    program = torch.compile(module, fullgraph=True)
    x = marginals()

    def check() -> None:
        y = ua.propagate(model, ua.Gaussian(*x), method="diagonal")
        assert_alike(program(*x), (y.mean, y.var))

    with torch.no_grad():
        check()
        kept = {key: value for key, (*_, value) in frozen._kept._known.items()}
        assert len(kept) == 2
        packed = [dict(value._last) for value in kept.values()]
        assert sorted(map(sorted, packed)) == [[1, 2], [2]]  # the first's are normed together

        def unchanged() -> bool:
            pairs = zip(kept.values(), packed, strict=True)
            return all(value._last[power] is p[power] for value, p in pairs for power in p)

        check()
        assert unchanged()
        model[0].weight.mul_(1.5)
        check()
        assert unchanged()  # others took their places
        randomise(model[1])
        check()
        model.load_state_dict(network(7).state_dict())
        check()
        model[3].weight.data = torch.randn_like(model[3].weight)  # elsewhere in memory
        check()
        model[3].weight.data.mul_(2)  # which counts no version
        check()
        model[3].weight.data.copy_(model[3].weight.data.flip(0))
        check()
    for _ in range(2):  # nor do these
        optimizer = torch.optim.Adam(model.parameters(), 0.1, fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        with torch.no_grad():
            check()


def test_a_weight_in_two_convolutions() -> None:
    weight = nn.Parameter(torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0)))

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Any) -> Any:
            once = F.conv2d(x[:, :2], self.weight, padding=1).relu()
            return F.conv2d(once, self.weight, stride=2, groups=2)

    module = ua.as_module(Twice()).eval()
    with torch.no_grad():
        for _ in range(2):
            assert_alike(compiled(module)(*marginals()), module(*marginals()))
    assert len(frozen._kept) == 2


def test_nothing_outlives_the_model() -> None:
    model = network()
    with torch.no_grad():
        compiled(ua.as_module(model).eval())(*marginals())
    assert len(frozen._kept) > 0
    del model
    torch.compiler.reset()
    gc.collect()
    assert len(frozen._kept) == 0


@compiles
def test_weights_that_a_program_computes_are_not_kept() -> None:
    """Inductor uses their memory again, and nothing tells."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [parametrizations.weight_norm(nn.Conv2d(3, 3, 3, padding=1)), nn.ReLU()]
    model = nn.Sequential(*layers).eval()
    module = ua.as_module(model).eval()
    program = torch.compile(module, fullgraph=True)
    with torch.no_grad():
        for scale in (1.0, 2.0):
            for name, parameter in model.named_parameters():
                if name.endswith("original0"):
                    parameter.mul_(scale)
            assert_alike(program(*marginals()), module(*marginals()))
    assert len(frozen._kept) == 0


@pytest.mark.parametrize("gradients", [False, True])
def test_gradients_by_the_input_go_another_way(gradients: bool) -> None:
    model = network()
    module = ua.as_module(model).eval()
    program = compiled(module)
    mean, var = marginals()
    mean.requires_grad_(gradients)

    def slope(function: Callable[..., Any]) -> Tensor:
        y_mean, y_var = function(mean, var)
        return torch.autograd.grad((y_mean.square() + y_var).sum(), mean)[0]

    if gradients:
        torch.testing.assert_close(slope(program), slope(module), rtol=1e-4, atol=1e-4)
    else:
        assert_alike(program(mean, var), module(mean, var))
    assert len(frozen._kept) == 0  # the weights themselves have gradients as well


def test_another_batch_size() -> None:
    module = ua.as_module(network()).eval()
    program = compiled(module, dynamic=True)
    with torch.no_grad():
        for batch in (2, 5, 1):
            assert_alike(program(*marginals(batch)), module(*marginals(batch)))


def test_other_dtypes_and_inference_mode() -> None:
    double = ua.as_module(network().double()).eval()
    mean, var = (t.double() for t in marginals())
    with torch.no_grad():
        assert_alike(compiled(double)(mean, var), double(mean, var))
    assert len(frozen._kept) == 0
    with torch.inference_mode():
        model = network()  # its weights do not count changes
        module = ua.as_module(model).eval()
        program = compiled(module)
        assert_alike(program(*marginals()), module(*marginals()))
        model[0].weight.mul_(3)
        assert_alike(program(*marginals()), module(*marginals()))
    assert len(frozen._kept) == 0


@compiles
def test_a_calibrated_program_goes_through_inductor() -> None:
    model = network()
    calibration = ua.calibrate(model, marginals(8)[0], std=0.1, samples=16)
    module = ua.as_module(model, "calibrated", calibration=calibration).eval()
    assert not [name for name in module.state_dict() if "factor" in name]
    mean, var = marginals()
    with torch.no_grad():
        program = torch.compile(module, fullgraph=True)
        assert_alike(program(mean, 0.01 * var), module(mean, 0.01 * var))
