"""propagate(): structures, options, Monte Carlo's own properties."""

from __future__ import annotations

import io
import math
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua
from uaprop.methods.progress import Progress
from uaprop.numerics.chance import seeded


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).double().eval()


@pytest.fixture
def x() -> ua.Gaussian:
    return ua.Gaussian(torch.randn(5, 4, dtype=torch.float64), 0.3)


def test_diagonal_is_the_model_on_a_gaussian(model: nn.Module, x: ua.Gaussian) -> None:
    y, z = ua.propagate(model, x, method="diagonal"), model(x)
    assert torch.equal(y.mean, z.mean)
    assert torch.equal(y.var, z.var)


def test_samples_of_a_linear_model_are_right(x: ua.Gaussian) -> None:
    layer = nn.Linear(4, 3).double()
    exact = layer(x)
    n = 20_000
    y = ua.propagate(layer, x, method="samples", samples=n)
    z = (y.mean - exact.mean).abs() / (exact.var / n).sqrt()
    assert z.max() < 4.5
    z = (y.var / exact.var - 1).abs() / math.sqrt(2 / n)
    assert z.max() < 4.5
    # the dense covariance has the correlation that the diagonal method lacks
    weight = layer.weight.detach()
    dense = weight @ (0.3 * weight.T)
    assert (y.covariance() - dense).abs().max() < 0.05 * dense.diagonal().max()


def test_samples_do_not_depend_on_the_chunk(model: nn.Module, x: ua.Gaussian) -> None:
    results = [
        ua.propagate(model, x, method="samples", samples=50, seed=3, chunk=chunk)
        for chunk in (1, 7, 50, 1000)
    ]
    for other in results[1:]:
        torch.testing.assert_close(other.mean, results[0].mean)
        torch.testing.assert_close(other.var, results[0].var)
        torch.testing.assert_close(other.covariance(), results[0].covariance())


def test_seed_decides(model: nn.Module, x: ua.Gaussian) -> None:
    def run(seed: int) -> Tensor:
        return ua.propagate(model, x, method="samples", samples=20, seed=seed).mean

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    before = torch.random.get_rng_state()
    run(0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_samples_match_a_plain_loop(model: nn.Module, x: ua.Gaussian) -> None:
    y = ua.propagate(model, x, method="samples", samples=30, seed=4, chunk=30)
    generator = seeded(4)
    noise = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    draws = x.loc + x.std * noise.unsqueeze(1)  # the same for every item
    outputs = torch.stack([model(draw) for draw in draws])
    torch.testing.assert_close(y.mean, outputs.mean(0))
    torch.testing.assert_close(y.var, outputs.var(0))


class Structured(nn.Module):
    """Several outputs, one of them constant."""

    def forward(self, a: Any, b: Any, scale: float = 1.0) -> dict[str, Any]:
        return {"sum": a + b, "parts": (a * scale, [F.relu(b)]), "name": "two"}


@pytest.mark.parametrize("method", ["diagonal", "samples"])
def test_structures_come_back(method: str) -> None:
    a = ua.Gaussian(torch.randn(2, 3), 1.0)
    b = ua.Gaussian(torch.randn(2, 3), 4.0)
    options = {} if method == "diagonal" else {"samples": 5000}
    for inputs in ((a, b, 2.0), {"a": a, "b": b, "scale": 2.0}):
        y = ua.propagate(Structured(), inputs, method=method, **options)
        assert y["name"] == "two"
        assert y["parts"][1][0].shape == (2, 3)
        torch.testing.assert_close(y["sum"].var, torch.full((2, 3), 5.0), rtol=0.15, atol=0)
        torch.testing.assert_close(y["parts"][0].var, torch.full((2, 3), 4.0), rtol=0.15, atol=0)


class NotVectorisable(nn.Module):
    """Control flow on values, which vmap refuses."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 2.0


def test_samples_work_where_vectorising_does_not(x: ua.Gaussian) -> None:
    y = ua.propagate(NotVectorisable(), x, method="samples", samples=500)
    torch.testing.assert_close(
        y.var.mean(), torch.tensor(1.2, dtype=torch.float64), rtol=0.1, atol=0
    )


def test_samples_include_the_models_own_noise() -> None:
    x = ua.Gaussian(torch.ones(4), 0.0)
    y = ua.propagate(nn.Dropout(0.5), x, method="samples", samples=4000)
    torch.testing.assert_close(y.var, torch.ones(4), rtol=0.1, atol=0)
    assert torch.equal(nn.Dropout(0.5)(x).var, torch.ones(4))


def test_large_outputs_keep_no_dense_covariance() -> None:
    x = ua.Gaussian(torch.zeros(1, 3000), 1.0)
    y = ua.propagate(nn.Identity(), x, method="samples", samples=4)
    with pytest.raises(ValueError, match="not kept"):
        y.covariance()
    small = ua.propagate(nn.Identity(), x[:, :3], method="samples", samples=4)
    assert small.covariance().shape == (1, 3, 3)
    assert torch.equal(small[:, :2].covariance(), small.covariance()[:, :2, :2])
    draws = small.sample(20_000)
    torch.testing.assert_close(draws.var(0), small.var, rtol=0.1, atol=0.01)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"method": "magic"}, ValueError, "diagonal, .*samples"),
        ({"method": "diagonal", "samples": 3}, TypeError, "no option 'samples'"),
        (
            {"method": "samples", "probes": 3},
            TypeError,
            "chunk, keys, moderated, qmc, samples, seed",
        ),
        ({"method": "samples", "samples": 1}, ValueError, "at least 2"),
        ({"method": "samples", "chunk": 0}, ValueError, "chunk must be"),
    ],
)
def test_bad_options_are_refused(
    arguments: dict, error: type, words: str, model: nn.Module, x: ua.Gaussian
) -> None:
    with pytest.raises(error, match=words):
        ua.propagate(model, x, **arguments)


def test_inputs_must_be_random(model: nn.Module, x: ua.Gaussian) -> None:
    with pytest.raises(TypeError, match=r"needs a ua\.Gaussian"):
        ua.propagate(model, torch.zeros(1, 4))
    sampled = ua.propagate(model, x, method="samples", samples=5)
    with pytest.raises(TypeError, match="finished"):
        ua.propagate(nn.ReLU(), sampled, method="diagonal")


def test_inputs_may_be_nested(x: ua.Gaussian) -> None:
    for method in ("diagonal", "samples"):
        y = ua.propagate(lambda inputs: inputs["a"][0] * 2, ({"a": [x]},), method=method)
        assert torch.allclose(y.var, 4 * x.var, rtol=0.3)


def test_integer_outputs_have_no_gaussian(x: ua.Gaussian) -> None:
    with pytest.raises(ua.UnsupportedOperation, match="int64"):
        ua.propagate(lambda t: (1e6 * t).long(), x, method="samples", samples=5)


def test_integers_that_do_not_depend_on_the_noise_are_returned(x: ua.Gaussian) -> None:
    def model(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return t * 2, torch.arange(len(t))

    y, rows = ua.propagate(model, x, method="samples", samples=5)
    assert isinstance(y, ua.Gaussian)
    assert torch.equal(rows, torch.arange(len(x)))


def test_errors_of_the_model_come_through(x: ua.Gaussian) -> None:
    with pytest.raises(RuntimeError, match="shape"):
        ua.propagate(nn.Linear(3, 2).double(), x, method="samples", samples=5)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_appears_on_a_terminal_only_and_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 5.0, 9.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    terminal = Terminal()
    with Progress(10, "sampling", terminal) as progress:
        progress.advance(2)
        assert terminal.getvalue() == ""
        progress.advance(3)
        assert "sampling" in terminal.getvalue()
        assert "5/10, 5 s left" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")

    clock = iter([0.0, 50.0])
    pipe = io.StringIO()
    with Progress(10, "sampling", pipe) as progress:
        progress.advance(5)
    assert pipe.getvalue() == ""
