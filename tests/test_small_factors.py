"""Factors near one, thresholds and signs in the estimators: each has a case in which it decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import uaprop as ua

DOUBLE = torch.float64


# ------------------------------------------------------------------ samples


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("centred", [True, False])
def test_few_samples_have_the_right_variance_on_average(count: int, centred: bool) -> None:
    """Centred samples have lost a degree of freedom, and are widened for it."""
    x = ua.Gaussian(torch.zeros(1, 20_000, dtype=DOUBLE), 1.0)
    y = ua.propagate(lambda x: 2 * x, x, method="samples", samples=count, centred=centred)
    assert float(y.var.mean()) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("count", [3, 4, 8])
def test_centred_samples_see_all_of_a_nonlinearity(count: int) -> None:
    """``E[x²] = v``: samples that are too close to the mean would make it less."""
    x = ua.Gaussian(torch.zeros(1, 20_000, dtype=DOUBLE), 1.0)
    y = ua.propagate(torch.square, x, method="samples", samples=count, centred=True)
    assert float(y.mean.mean()) == pytest.approx(1.0, rel=0.05)


# ------------------------------------------------------------------ residuals of a response


@pytest.mark.parametrize("count", [8, 16])
def test_residuals_of_like_outputs_have_no_bias(count: int) -> None:
    """An average of logarithms of variances is too small, and is raised by as much.

    ``Var(x + x²) = v + 2v²`` at the mean 0, of which the first is linear. Each output is a sum of many, hence
    nearly Gaussian; the outputs are alike, so their variances are shrunk towards an average.
    """
    x = ua.Gaussian(torch.zeros(1, 64, 32, dtype=DOUBLE), 1.0)

    def model(x: Any) -> Any:
        return (x + x * x).sum(-1) / 32**0.5

    found = [
        ua.propagate(model, x, method="hybrid", samples=count, seed=seed).var.mean()
        for seed in range(30)
    ]
    assert float(torch.stack(found).mean()) == pytest.approx(3.0, rel=0.08)


@pytest.mark.parametrize("count", [3, 4, 8])
def test_moderated_variances_of_like_outputs_have_no_bias(count: int) -> None:
    x = ua.Gaussian(torch.zeros(1, 64, dtype=DOUBLE), 1.0)
    found = [
        ua.propagate(
            lambda x: 2 * x, x, method="samples", samples=count, seed=seed, moderated=True
        ).var.mean()
        for seed in range(40)
    ]
    assert float(torch.stack(found).mean()) == pytest.approx(4.0, rel=0.08)


# ------------------------------------------------------------------ contenders of a flip


@pytest.mark.parametrize("share", [3e-2, 1e-4, 1e-7])
def test_contenders_that_matter_together_are_counted(share: float) -> None:
    """Sixty classes, each far behind the strongest rival: none is left out that may add a millionth."""
    chances = torch.full((62,), 0.01 * share, dtype=DOUBLE)
    chances[1] = 0.01
    means = Normal(0.0, 1.0).icdf(chances)  # each ahead of 0 with its chance
    var = torch.ones(62, dtype=DOUBLE)
    means[0], var[0] = 0.0, 0.0  # the predicted class is certain
    y = ua.Gaussian(means, var)
    win = ua.flip_probability(y).win
    torch.testing.assert_close(win[2:], chances[2:], rtol=0.05, atol=0)
    assert float(win[1]) == pytest.approx(0.01, rel=0.05)


# ------------------------------------------------------------------ batch elements that interact


class Coupled(nn.Module):
    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.strength * x.flip(0))


@pytest.mark.parametrize(
    ("dtype", "strength"), [(torch.float32, 1e-3), (DOUBLE, 1e-3), (DOUBLE, 1e-11)], ids=str
)
@pytest.mark.parametrize("method", ["sketch", "adjoint"])
def test_batch_elements_that_interact_weakly_are_not_cut_apart(
    method: str, dtype: torch.dtype, strength: float
) -> None:
    x = ua.Gaussian(torch.ones(4, 3, dtype=dtype), 0.01)
    with pytest.raises(ValueError, match="chunk"):
        ua.propagate(Coupled(strength), x, method=method, chunk=1)
    assert ua.propagate(nn.ReLU(), x, method=method, chunk=1).shape == (4, 3)


class Mixed(nn.Module):
    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, x: Any) -> Any:
        return x + self.strength * x.flip(0)


@pytest.mark.parametrize("strength", [1e-2, 1e-3])
@pytest.mark.parametrize("method", ["linear", "adjoint", "hybrid"])
def test_the_influence_of_other_batch_elements_is_not_taken_for_ones_own(
    method: str, strength: float
) -> None:
    """``Var(x_1 + s x_2) = (1 + s²) v``, not ``(1 + s)² v``."""
    x = ua.Gaussian(torch.ones(4, 3), 0.01)
    y = ua.propagate(Mixed(strength), x, method=method)
    expected = torch.full((4, 3), 0.1 * (1 + strength**2) ** 0.5)
    torch.testing.assert_close(torch.Tensor(y.std), expected, rtol=2e-4, atol=0)


# ------------------------------------------------------------------ files


class Divided(nn.Module):
    """By a number that is zero, for any batch or for one of three."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x) / (0.0 if self.always else 3 - x.shape[0])


@pytest.mark.parametrize("always", [True, False])
def test_a_file_whose_results_are_not_numbers_is_not_written(tmp_path: Path, always: bool) -> None:
    module = ua.as_module(Divided(always).eval(), "diagonal")
    path = tmp_path / "model.pt2"
    with pytest.raises(RuntimeError, match="nan"):
        ua.export(module, path, torch.ones(2, 3), 0.1)
    assert not path.exists()


# ------------------------------------------------------------------ calibration


@pytest.mark.parametrize("samples", [3, 4, 8])
def test_calibrated_outputs_have_std_over_sigma_of_one(samples: int) -> None:
    """A linear layer loses nothing; few samples must not make it look as if it did."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    inputs = torch.randn(600, 6, dtype=DOUBLE)
    calibration = ua.calibrate(model, inputs, std=0.3, samples=samples)
    x = ua.Gaussian(inputs, std=0.3)
    found = ua.propagate(model, x, method="calibrated", calibration=calibration)
    exact = model(x)
    assert float((found.std / exact.std).mean()) == pytest.approx(1.0, rel=0.05)


def test_calibrated_outputs_are_right_for_single_inputs_not_for_their_sum() -> None:
    """The diagonal method has all of the variance of one input and half of the other's."""

    def model(x: Any) -> Any:
        y = x * 1.0
        return y + torch.relu(y)

    inputs = torch.tensor([[-5.0], [5.0]], dtype=DOUBLE)
    calibration = ua.calibrate(model, inputs, std=0.1, samples=4096)
    x = ua.Gaussian(inputs, std=0.1)
    found = ua.propagate(model, x, method="calibrated", calibration=calibration)
    sigma = torch.tensor([[0.1], [0.2]], dtype=DOUBLE)
    assert float((found.std / sigma).mean()) == pytest.approx(1.0, rel=0.03)
