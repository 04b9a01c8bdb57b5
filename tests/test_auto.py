"""The default chooses by structure and by what its first samples say, each item for itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.demo import digits_cnn, digits_images


def propagated(model: Any, x: ua.Gaussian, **options: Any) -> ua.Gaussian:
    y = ua.propagate(model, x, **options)
    assert isinstance(y, ua.Gaussian)
    return y


def told(y: ua.Gaussian) -> str:
    return str(y.provenance)


class Mixed(nn.Module):
    """Nearly linear where the first element is positive, and even in the noise elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 200) / 14, requires_grad=False)
        self.work = nn.Parameter(torch.randn(2000, 200), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        busy = 0 * (x @ self.work.T @ self.work).sum(1, keepdim=True)  # no small model
        linear = x[:, 1:] @ self.weight[:, 1:].T
        even = x[:, 1:].square() @ self.weight[:, 1:].square().T
        positive = torch.sigmoid(20 * x[:, :1])
        return busy + positive * (linear + 0.01 * linear.square()) + (1 - positive) * even


def batch(signs: list[float]) -> ua.Gaussian:
    mean = torch.zeros(len(signs), 200)
    mean[:, 0] = 5 * torch.tensor(signs)
    return ua.Gaussian(mean, std=0.1)


def test_items_that_are_mostly_linear_have_a_response() -> None:
    model = Mixed()
    assert told(propagated(model, batch([1.0, 1.0]))).startswith("hybrid")
    assert told(propagated(model, batch([-1.0, -1.0]))).startswith("samples")
    images = digits_images()[0]
    y = propagated(digits_cnn(), ua.Gaussian(images, std=0.1))
    assert told(y).startswith("hybrid")
    assert y.attribution(0).shape == images.shape


def test_each_item_decides_for_itself() -> None:
    model = Mixed()
    signs = [1.0, -1.0, -1.0, 1.0, -1.0]
    together = propagated(model, batch(signs))
    assert "hybrid" in told(together)
    assert "samples" in told(together)
    for i, sign in enumerate(signs):
        alone = propagated(model, batch([sign]))
        torch.testing.assert_close(alone.mean[0], together.mean[i], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(alone.std[0], together.std[i], rtol=1e-3, atol=1e-6)
        error = alone.standard_error.std[0]
        torch.testing.assert_close(error, together.standard_error.std[i], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"rtol": 0.1}])
def test_each_item_decides_also_if_a_constant_depends_on_their_number(
    options: dict[str, Any],
) -> None:
    """Such a batch cannot be cut: each method is run on all of it."""
    model, signs = Mixed(), [1.0, -1.0, -1.0, 1.0]

    def numbered(v: Any) -> Any:
        return model(v), torch.arange(len(v))

    y, index = ua.propagate(numbered, batch(signs), **options)
    assert torch.equal(index, torch.arange(4))
    assert "mostly linear" in told(y)
    assert "too nonlinear" in told(y)
    for i, sign in enumerate(signs):
        alone, _ = ua.propagate(numbered, batch([sign]), **options)
        torch.testing.assert_close(alone.mean[0], y.mean[i], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(alone.std[0], y.std[i], rtol=1e-3, atol=1e-6)


def test_results_of_both_kinds_are_right_and_in_order() -> None:
    model = Mixed()
    x = batch([1.0, -1.0, -1.0, 1.0])
    truth = propagated(model, x, method="samples", samples=20_000)
    scores = []
    for seed in range(12):
        y = propagated(model, x, seed=seed, keys=range(4))
        spread = torch.hypot(y.standard_error.std, truth.standard_error.std)
        scores.append((y.std - truth.std) / spread)
    assert 0.6 < float(torch.stack(scores).square().mean().sqrt()) < 1.4


def regressor() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).eval()


def test_a_small_model_with_few_sources_is_known_to_a_percent() -> None:
    model, x = regressor(), ua.Gaussian(torch.randn(6, 8), std=0.7)
    truth = propagated(model, x, method="samples", samples=400_000)
    y = propagated(model, x)
    assert "qmc=True" in told(y)
    assert float((y.std / truth.std - 1).abs().max()) < 0.03
    assert float(((y.mean - truth.mean) / truth.std).abs().max()) < 0.02


def test_a_small_linear_model_is_exact() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3))
    x = ua.Gaussian(torch.randn(5, 8), std=0.3)
    y, exact = propagated(model, x), propagated(model, x, method="linear")
    torch.testing.assert_close(y.covariance(), exact.covariance(), rtol=1e-5, atol=1e-8)
    assert y.attribution(0).shape == (5, 8)


def test_many_outputs_cost_about_forty_passes() -> None:
    model = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.Tanh(), nn.Conv2d(64, 1, 3, padding=1))
    y = propagated(model, ua.Gaussian(torch.randn(1, 1, 64, 64), std=0.3))
    assert y.provenance is not None
    assert y.provenance.method == "samples"
    assert 32 <= y.provenance.options["samples"] <= 40


@pytest.mark.parametrize("rtol", [0.1, 0.03])
def test_rtol_is_reached_for_nineteen_outputs_in_twenty(rtol: float) -> None:
    images = digits_images()[0][:8]
    x = ua.Gaussian(images, std=0.5)
    model = digits_cnn()
    truth = propagated(model, x, method="samples", samples=40_000)
    y = propagated(model, x, rtol=rtol)
    assert f"rtol={rtol:g} reached" in told(y)
    stated = (y.standard_error.std / y.std).quantile(0.95, dim=1)
    assert float(stated.max()) <= rtol
    assert float((y.std / truth.std - 1).square().mean().sqrt()) < 1.2 * rtol


def test_rtol_of_an_item_does_not_depend_on_others() -> None:
    model = Mixed()
    signs = [1.0, -1.0, -1.0, 1.0]
    together = propagated(model, batch(signs), rtol=0.05)
    for i, sign in enumerate(signs):
        alone = propagated(model, batch([sign]), rtol=0.05)
        torch.testing.assert_close(alone.std[0], together.std[i], rtol=1e-3, atol=1e-6)


def test_max_samples_is_kept_and_said() -> None:
    y = propagated(Mixed(), batch([-1.0]), rtol=0.001, max_samples=100)
    assert "not reached with max_samples=100" in told(y)
    assert y.provenance is not None
    assert y.provenance.options["samples"] <= 100


@pytest.mark.parametrize("rtol", [0, -0.1, 1.0, float("nan")])
def test_other_tolerances_are_refused(rtol: float) -> None:
    with pytest.raises(ValueError, match="rtol"):
        propagated(regressor(), ua.Gaussian(torch.zeros(1, 8), std=1.0), rtol=rtol)


def test_items_that_influence_each_other_are_chosen_for_together() -> None:
    model = Mixed()

    def mixing(x: Tensor) -> Tensor:
        y = model(x)
        return y - y.mean(0)

    x = batch([1.0, -1.0, 1.0])
    y = propagated(mixing, x, rtol=0.1)
    truth = propagated(mixing, x, method="samples", samples=20_000)
    assert float((y.std / truth.std - 1).abs().max()) < 0.4


def test_a_script_is_sampled() -> None:
    """A response would need its graph, which takes far longer to capture than all samples do."""
    torch.manual_seed(0)
    model = torch.jit.trace(nn.Sequential(nn.Linear(80, 3), nn.Tanh()), torch.ones(2, 80))
    x = ua.Gaussian(torch.randn(4, 80), std=0.01)
    for given in (model, nn.Sequential(model)):
        y = ua.propagate(given, x)
        assert y.provenance.method == "samples"
        assert "script" in y.provenance.reason
