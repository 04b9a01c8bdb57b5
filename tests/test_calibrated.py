"""Calibration: what it corrects, what it refuses, and that it survives a file."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import uaprop as ua
from uaprop.methods.curves import curve, curved
from uaprop.methods.levels import slope
from uaprop.numerics.chance import seeded


def network(seed: int = 0, width: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 9, 4),
    )
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    for parameter in model.parameters():
        if parameter.ndim == 4:  # mostly of one sign, so that what is summed is correlated
            parameter.data += 0.1
    return model.eval().requires_grad_(False)


def images(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 2, 6, 6, generator=torch.Generator().manual_seed(seed))


def error(answer: ua.Gaussian, truth: ua.Gaussian) -> float:
    return float((answer.std / truth.std - 1).abs().mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_corrects_most_of_what_the_diagonal_loses(dtype: torch.dtype) -> None:
    model = network().to(dtype)
    calibration = ua.calibrate(model, images(16, seed=2).to(dtype), std=0.3, samples=128)
    x = ua.Gaussian(images(6).to(dtype), std=0.3)
    truth = ua.propagate(model, x, method="samples", samples=8000)
    diagonal = ua.propagate(model, x, method="diagonal")
    corrected = ua.propagate(model, x, method="calibrated", calibration=calibration)
    assert corrected.dtype == dtype
    assert error(diagonal, truth) > 0.3
    assert error(corrected, truth) < 0.15
    assert str(corrected.provenance).startswith("calibrated(calibration=Calibration(4 places")


def test_a_linear_layer_of_independent_inputs_needs_no_correction() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    calibration = ua.calibrate(model, torch.randn(64, 5).double(), std=0.5, samples=1024)
    (factors,) = calibration.factors
    assert calibration.places == ("Output",)
    # each factor is an average over 64 variances of 1024 draws
    assert torch.allclose(factors, torch.ones(3).double(), atol=6 * (2 / 1024 / 64) ** 0.5)


def test_factors_add_up_to_the_truth_at_every_place() -> None:
    """With no nonlinearity but one, the corrected sum is exactly that of the draws."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    calibration = ua.calibrate(model, x, var=1.0, samples=32, seed=3)
    generator = seeded(3)
    draws = model[0](x + torch.randn(32, 8, 4, generator=generator))
    diagonal = model[0](ua.Gaussian(x, 1.0)).cov.var
    expected = draws.var(0).sum(0) / diagonal.sum(0)
    torch.testing.assert_close(calibration.factors[0], expected.detach())


def test_a_file_keeps_it(tmp_path: Path) -> None:
    model, x = network(), ua.Gaussian(images(2), std=0.3)
    calibration = ua.calibrate(model, images(4), std=0.3, samples=8)
    calibration.save(tmp_path / "factors.safetensors")
    loaded = ua.Calibration.load(tmp_path / "factors.safetensors")
    assert loaded.places == calibration.places
    assert loaded.model == calibration.model
    assert torch.equal(loaded.slopes, calibration.slopes)
    assert torch.equal(loaded.levels, calibration.levels)
    assert torch.equal(loaded.curves, calibration.curves)
    assert torch.equal(loaded.held_out, calibration.held_out)
    assert torch.equal(loaded.inputs, calibration.inputs)
    before = ua.propagate(model, x, method="calibrated", calibration=calibration)
    after = ua.propagate(model, x, method="calibrated", calibration=loaded)
    assert torch.equal(before.var, after.var)
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="is no calibration"):
        ua.Calibration.load(tmp_path / "other.safetensors")


def test_another_model_is_refused() -> None:
    x = ua.Gaussian(images(2), std=0.3)
    calibration = ua.calibrate(network(), images(4), std=0.3, samples=8)
    with pytest.raises(ValueError, match="other weights"):
        ua.propagate(network(seed=1), x, method="calibrated", calibration=calibration)
    model = network()
    fitting = replace(calibration, model=ua.calibrate(model, images(4), std=0.3).model)
    short = replace(fitting, factors=fitting.factors[:-1], places=fitting.places[:-1])
    with pytest.raises(ValueError, match="ends after 3 places"):
        ua.propagate(model, x, method="calibrated", calibration=short)
    long = replace(
        fitting,
        factors=(*fitting.factors, torch.ones(4)),
        places=(*fitting.places, "Output"),
    )
    with pytest.raises(ValueError, match="has 5 places, the model 4"):
        ua.propagate(model, x, method="calibrated", calibration=long)
    wide = replace(fitting, factors=(torch.ones(9), *fitting.factors[1:]))
    with pytest.raises(ValueError, match="at place 0 it has 9 channels of Elementwise"):
        ua.propagate(model, x, method="calibrated", calibration=wide)


def test_bad_arguments_are_refused() -> None:
    model, x = network(), ua.Gaussian(images(2), std=0.3)
    with pytest.raises(TypeError, match="needs the option 'calibration'"):
        ua.propagate(model, x, method="calibrated")
    with pytest.raises(TypeError, match=r"ua\.calibrate or"):
        ua.propagate(model, x, method="calibrated", calibration=1.0)
    with pytest.raises(TypeError, match="var or std"):
        ua.calibrate(model, images(2))
    with pytest.raises(TypeError, match="have their own"):
        ua.calibrate(model, x, std=0.1)
    with pytest.raises(TypeError, match="needs noisy inputs"):
        ua.calibrate(model, (1, 2))
    calibration = ua.calibrate(model, x, samples=4)
    shared = ua.Gaussian.from_factors(images(2), images(2)[None])
    with pytest.raises(TypeError, match="independent elements"):
        ua.propagate(model, shared, method="calibrated", calibration=calibration)


def test_two_inputs_and_several_outputs() -> None:
    def model(x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"product": x * scale, "rest": torch.tanh(x)}

    x = ua.Gaussian(torch.ones(6, 3), std=0.3)
    scale = ua.Gaussian(torch.full((6, 3), 2.0), std=0.5)
    calibration = ua.calibrate(model, (x, scale), samples=2000)
    answer = ua.propagate(model, (x, scale), method="calibrated", calibration=calibration)
    truth = ua.propagate(model, (x, scale), method="samples", samples=4000)
    for name in ("product", "rest"):
        assert error(answer[name], truth[name]) < 0.05


def coherent() -> nn.Module:
    """A sum of the active ones of 64 inputs: their correlation, and so what is lost, depends on the input."""
    model = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 1)).double()
    with torch.no_grad():
        model[0].weight.fill_(1)
        model[0].bias.copy_(-torch.linspace(-1, 1, 64) * 8)
        model[2].weight.fill_(1)
        model[2].bias.zero_()
    return model.requires_grad_(False)


def test_inputs_in_which_more_is_lost_are_corrected_by_more() -> None:
    """With k units active the output's variance is k² v, and the diagonal's is k v: a slope of 1."""
    model, x = coherent(), torch.linspace(-6, 7, 27).double().unsqueeze(1)
    calibration = ua.calibrate(model, x, std=0.05, samples=512)
    assert calibration.slopes.shape == (2,)
    assert calibration.slopes[0] == 0  # nothing is lost before the first nonlinearity
    assert abs(float(calibration.slopes[1]) - 1) < 0.1
    tested = ua.Gaussian(torch.tensor([[-5.3], [-2.2], [1.9], [6.6]]).double(), std=0.05)
    truth = ua.propagate(model, tested, method="samples", samples=20_000)
    answer = ua.propagate(model, tested, method="calibrated", calibration=calibration)
    assert error(answer, truth) < 0.1
    alone = replace(calibration, slopes=torch.zeros(2).double())
    assert error(ua.propagate(model, tested, method="calibrated", calibration=alone), truth) > 0.25
    # another size of the noise is another size everywhere: the law compares with the first place
    louder = ua.Gaussian(tested.mean, std=0.1)
    twice = ua.propagate(model, louder, method="calibrated", calibration=calibration)
    assert ((twice.std / answer.std / 2 - 1).abs() < 0.1).all()


def test_the_power_law_goes_no_further_than_it_was_fitted() -> None:
    model, x = coherent(), torch.linspace(-2, 2, 20).double().unsqueeze(1)
    calibration = ua.calibrate(model, x, std=0.05, samples=256)
    centre, low, high = calibration.levels[1].tolist()
    assert low < centre < high
    for mean, level in ((-7.5, low), (7.9, high)):
        far = ua.Gaussian(torch.full((1, 1), mean).double(), std=0.05)
        options: Any = {"method": "calibrated", "outside": "ignore"}
        answer = ua.propagate(model, far, calibration=calibration, **options)
        flat = replace(calibration, slopes=torch.zeros(2).double())
        plain = ua.propagate(model, far, calibration=flat, **options)
        expected = float(calibration.slopes[1]) * (level - centre)
        assert float((answer.cov.var / plain.cov.var).log()) == pytest.approx(expected)


class Scores(nn.Module):
    """Every score is a sum of 64 rectified copies of its input, each with a threshold of its own."""

    def forward(self, x: Any) -> Any:
        thresholds = torch.linspace(-8, 8, 64, dtype=torch.float64)
        return F.relu(x.unsqueeze(-1) - thresholds).sum(-1)


def test_large_scores_are_corrected_by_more() -> None:
    """With k copies active a score's variance is k² v, and the diagonal's is k v: a curve over the mean."""
    model, generator = Scores(), torch.Generator().manual_seed(0)
    x, tested = (14 * torch.rand(n, 20, generator=generator).double() - 6.5 for n in (32, 8))
    calibration = ua.calibrate(model, x, std=0.05, samples=256)
    assert calibration.curves.shape == (2, 8)
    assert (calibration.curves[0] == 0).all()  # no scores yet
    low, high, *values = calibration.curves[1].tolist()
    scores = model(x)
    assert scores.min() <= low < high <= scores.max()
    assert all(a < b for a, b in itertools.pairwise(values))
    noisy = ua.Gaussian(tested, std=0.05)
    truth = ua.propagate(model, noisy, method="samples", samples=4000)
    answer = ua.propagate(model, noisy, method="calibrated", calibration=calibration)
    assert error(answer, truth) < 0.1
    flat = replace(calibration, curves=torch.zeros(2, 8).double())
    assert error(ua.propagate(model, noisy, method="calibrated", calibration=flat), truth) > 0.2


def test_a_curve_is_found_and_one_that_chance_could_have_made_is_none() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-3, 7, 4000, dtype=torch.float64)
    noise = 0.3 * torch.randn(4000, generator=generator, dtype=torch.float64)
    fitted = curve(x, F.relu(x - 1) / 4 + noise + 0.7)
    factor = curved(torch.ones_like(x), x, *fitted).log()
    expected = F.relu(x - 1) / 4
    assert (factor - factor.mean() - expected + expected.mean()).abs().max() < 0.1
    ends = curved(torch.ones(2).double(), torch.tensor([-9.0, 99.0]).double(), *fitted).log()
    torch.testing.assert_close(ends.tolist(), [fitted[2], fitted[-1]])
    unknown = torch.where(x > 5, torch.nan, F.relu(x - 1) / 4)
    assert curve(x, unknown)[1] < 5
    none = [0.0] * 8
    assert sum(curve(x[i::20], noise[i::20]) != none for i in range(20)) <= 3
    assert curve(x[:50], x[:50]) == none  # too few
    many = torch.linspace(0, 1, 2**24 + 8).view(3, -1)  # more than torch.quantile takes
    assert curve(many, many)[2] < curve(many, many)[-1]
    assert curve(torch.ones(4000), x) == none  # all alike
    assert curved(x, x, *none) is x


def test_a_slope_that_chance_could_have_made_is_none() -> None:
    generator = torch.Generator().manual_seed(0)
    level = torch.randn(200, 24, generator=generator)
    noise = torch.randn(200, 24, generator=generator)
    by_chance = torch.tensor([slope(a, b) for a, b in zip(level, noise, strict=True)])
    assert (by_chance == 0).float().mean() > 0.6  # |b| is below its error in 68% of cases
    real = torch.tensor([slope(a, 2 * a + 0.1 * b) for a, b in zip(level, noise, strict=True)])
    assert (real - 2).abs().max() < 0.2
    assert slope(level[0, :3], noise[0, :3]) == 0  # too few to tell
    assert slope(torch.zeros(24), noise[0]) == 0
    assert slope(level[0], torch.full((24,), torch.nan)) == 0


@pytest.mark.parametrize("samples", [4, 16])
def test_few_draws_make_no_bias(samples: int) -> None:
    """1/σ from few draws is too large on average, by a known amount that is taken out."""
    model = nn.Linear(3, 40, bias=False).double()
    x = torch.zeros(400, 3).double()
    (factors,) = ua.calibrate(model, x, std=1.0, samples=samples).factors
    assert abs(float(factors.log().mean())) < 0.05


def test_standard_deviations_of_outputs_are_right_on_average() -> None:
    """Not variances: of inputs in which 8, 16 and 48 copies are active those of 48 would decide alone."""
    model = Scores()
    x = ua.Gaussian(torch.tensor([[-6.0], [-4.0], [4.0]]).double(), std=0.02)  # too few for a law
    calibration = ua.calibrate(model, x, samples=2000)
    answer = ua.propagate(model, x, method="calibrated", calibration=calibration)
    truth = ua.propagate(model, x, method="samples", samples=8000)
    ratio = answer.std / truth.std
    assert ratio.max() > 1.4  # one factor cannot suit all
    assert float(ratio.mean()) == pytest.approx(1, abs=0.03)
