"""A calibration says how far it is off, and at which inputs it was not fitted."""

from __future__ import annotations

import math
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.demo import digits_cnn, digits_images
from uaprop.methods.applicability import applicability, fitted_range, statistics
from uaprop.methods.held_out import held_out_error

STD = 0.2


@pytest.fixture(scope="module")
def digits() -> nn.Module:
    return digits_cnn()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return digits_images()[0]


@pytest.fixture(scope="module")
def calibration(digits: nn.Module, images: Tensor) -> ua.Calibration:
    return ua.calibrate(digits, images[:12], std=STD)


@pytest.fixture(scope="module")
def fresh(images: Tensor) -> ua.Gaussian:
    return ua.Gaussian(images[12:], std=STD)


@pytest.fixture(scope="module")
def truth(digits: nn.Module, fresh: ua.Gaussian) -> ua.Gaussian:
    return ua.propagate(digits, fresh, method="samples", samples=8000)


def calibrated(model: Any, x: Any, calibration: ua.Calibration, **options: Any) -> Any:
    """The method; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ua.propagate(model, x, method="calibrated", calibration=calibration, **options)


def regressor(seed: int = 0, features: int = 6, outputs: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(32, outputs))
    return model.eval().requires_grad_(False)


def rows(count: int, seed: int, features: int = 6) -> Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(seed))


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


# ------------------------------------------------------------------ how far it is off


def test_the_held_out_error_is_that_on_fresh_inputs(
    digits: nn.Module, calibration: ua.Calibration, fresh: ua.Gaussian, truth: ua.Gaussian
) -> None:
    y = calibrated(digits, fresh, calibration)
    ((std, mean),) = calibration.held_out.tolist()
    assert 1 / 1.5 < std / rms(1 - truth.std / y.std) < 1.5
    # of 64 samples the mean has an error of 0.12 standard deviations: there is no telling a smaller one
    assert rms((y.mean - truth.mean) / y.std) / 1.5 < mean < 0.12


@pytest.mark.parametrize("level", [0.05, 0.2, 0.5])
def test_standard_errors_on_fresh_inputs(digits: nn.Module, images: Tensor, level: float) -> None:
    found = ua.calibrate(digits, images[::2], std=level)
    x = ua.Gaussian(images[1::2], std=level)
    y = calibrated(digits, x, found)
    truth = ua.propagate(digits, x, method="samples", samples=4000)
    assert 0.7 < rms((y.std - truth.std) / y.standard_error.std) < 1.4
    assert rms((y.mean - truth.mean) / y.standard_error.mean) < 1.4


@pytest.mark.parametrize("level", [0.1, 0.5])
def test_standard_errors_of_a_regressor(level: float) -> None:
    stds, means = [], []
    for seed in range(4):
        model = regressor(seed)
        found = ua.calibrate(model, rows(48, 2 * seed), std=level)
        x = ua.Gaussian(rows(100, 2 * seed + 1), std=level)
        y = ua.propagate(model, x, method="calibrated", calibration=found)
        truth = ua.propagate(model, x, method="samples", samples=2000)
        stds.append((y.std - truth.std) / y.standard_error.std)
        means.append((y.mean - truth.mean) / y.standard_error.mean)
    assert 0.7 < rms(torch.cat(stds)) < 1.4
    assert 0.3 < rms(torch.cat(means)) < 1.4


def test_the_samples_own_noise_is_not_counted() -> None:
    """Of a method that is right nothing is left, however few samples there are; else its error is."""
    generator = torch.Generator().manual_seed(0)
    sigma = torch.rand(400, 50, generator=generator).double() + 0.5
    for count, off, shift in ((16, 0.0, 0.0), (16, 0.2, 0.3), (64, 0.1, 0.05)):
        normal = torch.randn(count, 400, 50, generator=generator, dtype=torch.float64)
        sign = torch.randint(0, 2, (400, 50), generator=generator) * 2.0 - 1
        claimed = sigma / (1 - off * sign)  # 1 - σ/s is off
        std, mean = held_out_error([(shift * claimed, claimed.square(), normal * sigma)])
        assert std == pytest.approx(off, rel=0.05, abs=0.03)
        assert mean == pytest.approx(shift, rel=0.1, abs=0.03)


def test_heavy_tails_are_noise_of_the_samples_too() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.empty(64, 400, 20, dtype=torch.float64).exponential_(generator=generator)
    one = torch.ones(400, 20).double()
    std, mean = held_out_error([(one, one, values)])  # kurtosis 9: √(8/4/63) is 18%
    assert std < 0.1  # kurtoses of few samples are too small
    assert mean < 0.03


def test_a_few_outputs_that_are_far_off_do_not_decide_for_all() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(64, 50, 20, generator=generator)
    var = torch.ones(50, 20)
    var[0, 0] = 1e-20
    var[1, 1] = 0
    std, mean = held_out_error([(torch.zeros(50, 20), var, samples)])
    assert std < 0.3
    assert mean < 0.1
    still = samples.clone()
    still[:, :, :10] = 0  # no sample has moved these
    assert held_out_error([(torch.zeros(50, 20), torch.ones(50, 20), still)])[0] < 0.1


def test_outputs_have_errors_of_their_own() -> None:
    class Two(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"linear": 2 * x, "bent": torch.relu(x).prod(-1, keepdim=True)}

    found = ua.calibrate(Two(), rows(32, 0, 3) + 1, std=0.5)
    assert found.held_out.shape == (2, 2)
    linear, bent = found.held_out[:, 0].tolist()
    assert linear < 0.05 < 0.1 < bent
    y = ua.propagate(
        Two(), ua.Gaussian(rows(8, 1, 3) + 1, std=0.5), "calibrated", calibration=found
    )
    ratio = y["bent"].standard_error.std / y["bent"].std
    torch.testing.assert_close(ratio, torch.full_like(ratio, bent))
    assert "held-out error up to" in str(y["linear"].provenance)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_inputs_have_no_held_out_error(digits: nn.Module, images: Tensor, count: int) -> None:
    found = ua.calibrate(digits, images[:count], std=STD, samples=8)
    assert found.held_out.shape == (0, 2)
    y = ua.propagate(
        digits, ua.Gaussian(images[:1], std=STD), "calibrated", calibration=found, outside="ignore"
    )
    assert "no held-out error" in str(y.provenance)
    with pytest.raises(ValueError, match="'calibrated' comes without standard errors"):
        _ = y.standard_error


def test_a_vector_is_no_batch() -> None:
    found = ua.calibrate(nn.Tanh(), torch.randn(20), std=0.1, samples=8)
    assert found.held_out.shape == (0, 2)
    assert found.inputs.shape == (1, 3, 4)


def test_items_that_influence_each_other_cannot_be_held_out() -> None:
    class Centred(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(x - x.mean(0))

    assert len(ua.calibrate(Centred(), rows(8, 0), std=0.1, samples=8).held_out) == 0


def test_a_model_of_one_batch_size_cannot_be_held_out() -> None:
    def model(x: Any) -> Any:
        return torch.relu(x.reshape(8, 6))

    found = ua.calibrate(model, rows(8, 0), std=0.1, samples=8)
    assert len(found.held_out) == 0
    assert len(found.factors) == 2


def test_captured_models_have_a_held_out_error() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(6, 4), nn.ReLU()).requires_grad_(False))
    assert len(ua.calibrate(model, rows(8, 0), std=0.1, samples=8).held_out) == 1


def test_factors_are_fitted_to_all_inputs(digits: nn.Module, images: Tensor) -> None:
    """Two inputs of a kind: a half of them would have other factors, and the passes leave no trace."""
    given = torch.cat([images[:6], images[:6] / 4])
    state = torch.get_rng_state()
    a, b = (ua.calibrate(digits, given, std=STD, samples=16) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, a.factors, b.factors))
    assert torch.equal(a.held_out, b.held_out)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU()).requires_grad_(False)
    x = rows(8, 0, 4)
    found = ua.calibrate(model, x, var=1.0, samples=32, seed=3)
    from uaprop.numerics.chance import seeded

    draws = model[0](x + torch.randn(32, 8, 4, generator=seeded(3)))
    expected = draws.var(0).sum(0) / model[0](ua.Gaussian(x, 1.0)).cov.var.sum(0)
    torch.testing.assert_close(found.factors[0], expected)


def test_results_keep_their_standard_errors(
    digits: nn.Module, calibration: ua.Calibration, fresh: ua.Gaussian, tmp_path: Path
) -> None:
    y = calibrated(digits, fresh, calibration)
    error = y.standard_error
    assert error.std.shape == error.mean.shape == y.shape
    assert (error.std > 0).all()
    assert torch.equal(y[3:5].standard_error.std, error.std[3:5])
    y.save(tmp_path / "result")
    for copy in (ua.load(tmp_path / "result"), pickle.loads(pickle.dumps(y))):
        assert torch.equal(copy.standard_error.mean, error.mean)
        assert "held-out error" in str(copy.provenance)


def test_standard_errors_carry_no_gradients(digits: nn.Module, calibration: ua.Calibration) -> None:
    var = torch.full((2, 1, 8, 8), STD**2, requires_grad=True)
    x = ua.Gaussian(digits_images()[0][:2], var)
    y = calibrated(digits, x, calibration)
    assert y.var.requires_grad
    assert not y.standard_error.std.requires_grad


def test_without_noise_the_standard_error_is_that_of_rounding(
    digits: nn.Module, images: Tensor, calibration: ua.Calibration
) -> None:
    y = calibrated(digits, ua.Gaussian(images[:2], std=0.0), calibration)
    assert (y.std == 0).all()
    assert ((y.standard_error.std > 0) & (y.standard_error.std < 1e-5)).all()


# ------------------------------------------------------------------ at which inputs


def test_inputs_of_the_same_kind_are_not_outside() -> None:
    outside = total = 0
    for seed in range(20):
        scale = torch.exp(0.5 * rows(212, 1000 + seed, 1))
        x = rows(212, seed, 30) * scale + 0.3
        (low, _, _, high) = fitted_range(ua.Gaussian(x[:12], std=STD)).unbind(1)
        found = statistics(ua.Gaussian(x[12:], std=STD))
        outside += int(((found < low) | (found > high)).any(1).sum())
        total += len(found)
    assert outside < 0.02 * total


def test_fresh_images_and_similar_noise_give_no_warning(
    digits: nn.Module, images: Tensor, calibration: ua.Calibration
) -> None:
    for level in (0.11, STD, 0.39):
        calibrated(digits, ua.Gaussian(images, std=level), calibration)
    calibrated(digits, ua.Gaussian(images[:0], std=9.0), calibration)  # an empty batch
    assert applicability([ua.Gaussian(images, std=STD)], calibration.inputs) == ("", False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x: ua.Gaussian(x, std=0.5),
            r"12 of 12 items .* noise's standard deviation is 0\.5, 2\.5 times the largest .*, 0\.2",
        ),
        (
            lambda x: ua.Gaussian(x, std=0.02),
            r"noise's standard deviation is 0\.02, 0\.1 times the smallest that was fitted, 0\.2",
        ),
        (
            lambda x: ua.Gaussian(-x, std=STD),
            r"elements' mean is -0\.\d+, 0\.\d+ below the smallest",
        ),
        (
            lambda x: ua.Gaussian(x + 0.7, std=STD),
            r"elements' mean is 1\.\d+, 0\.\d+ above the largest",
        ),
        (
            lambda x: ua.Gaussian(x * 2.5, std=STD),
            r"root mean square is 1\.\d+, 2\.\d+ times the largest",
        ),
        (lambda x: ua.Gaussian(x * 0, std=STD), "root mean square is .* times the smallest"),
    ],
    ids=["more noise", "less noise", "negative", "bright", "large", "blank"],
)
def test_other_inputs_are_warned_of(
    digits: nn.Module, images: Tensor, calibration: ua.Calibration, change: Any, words: str
) -> None:
    x = change(images[12:])
    with pytest.warns(UserWarning, match=words) as told:
        y = ua.propagate(digits, x, method="calibrated", calibration=calibration)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert 'Fit with such inputs too, or use method="hybrid"' in str(told[0].message)
    assert torch.equal(calibrated(digits, x, calibration, outside="ignore").var, y.var)


@pytest.mark.parametrize(
    "change",
    [lambda x: ua.Gaussian(x, std=1.1), lambda x: ua.Gaussian(8 * x, std=STD)],
    ids=["noise", "elements"],
)
def test_far_larger_inputs_are_refused(
    digits: nn.Module, images: Tensor, calibration: ua.Calibration, change: Any
) -> None:
    x = change(images[:3])
    words = r'3 of 3 items .* times the largest .* method="hybrid"; outside="warn"'
    with pytest.raises(ValueError, match=words):
        ua.propagate(digits, x, method="calibrated", calibration=calibration)
    with pytest.warns(UserWarning, match="3 of 3 items") as told:
        ua.propagate(digits, x, method="calibrated", calibration=calibration, outside="warn")
    assert len(told) == 1
    calibrated(digits, x, calibration, outside="ignore")


def test_one_item_among_others_is_seen(
    digits: nn.Module, images: Tensor, calibration: ua.Calibration
) -> None:
    std = torch.full((24, 1, 1, 1), STD)
    std[5] = 0.7
    std[6] = 0  # nothing to correct
    with pytest.warns(UserWarning, match="1 of 24 items differ"):
        ua.propagate(digits, ua.Gaussian(images, std=std), "calibrated", calibration=calibration)


def test_what_was_fitted_too_is_not_outside(digits: nn.Module, images: Tensor) -> None:
    std = torch.tensor([0.05, 0.8]).repeat(12).view(24, 1, 1, 1)
    found = ua.calibrate(digits, images, std=std, samples=8)
    for level in (0.03, 0.2, 1.5):
        calibrated(digits, ua.Gaussian(images, std=level), found)


def test_every_random_input_has_a_range() -> None:
    def model(x: Any, scale: Any) -> Any:
        return torch.tanh(x * scale)

    def inputs(noise: float) -> tuple[ua.Gaussian, ua.Gaussian]:
        return ua.Gaussian(rows(8, 0), std=0.1), ua.Gaussian(rows(8, 1) + 4, std=noise)

    found = ua.calibrate(model, inputs(0.3), samples=8)
    assert found.inputs.shape == (2, 3, 4)
    calibrated(model, inputs(0.4), found)
    with pytest.warns(UserWarning, match="standard deviation of random input 1 is 0.8"):
        ua.propagate(model, inputs(0.8), "calibrated", calibration=found)
    plain = ua.calibrate(lambda x: torch.tanh(x), rows(8, 0), std=0.1, samples=8)
    both = ua.Gaussian(rows(8, 0), std=0.1), ua.Gaussian(rows(8, 2), std=0.1)
    with pytest.raises(ValueError, match="random inputs is 2, and that of those fitted 1"):
        ua.propagate(lambda x, y: torch.tanh(x + y), both, "calibrated", calibration=plain)


def test_a_calibration_without_noise_is_for_none() -> None:
    model, x = regressor(), rows(8, 0)
    found = ua.calibrate(model, x, std=0.0, samples=8)
    calibrated(model, ua.Gaussian(x, std=0.0), found)
    with pytest.raises(ValueError, match="noise's standard deviation"):
        ua.propagate(model, ua.Gaussian(x, std=0.1), "calibrated", calibration=found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_range_does_not_depend_on_the_dtype(dtype: torch.dtype) -> None:
    x = rows(12, 0, 30)
    expected = fitted_range(ua.Gaussian(x, std=STD))
    found = fitted_range(ua.Gaussian(x.to(dtype), torch.full_like(x, STD**2).to(dtype)))
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_enormous_inputs_have_a_range() -> None:
    found = fitted_range(ua.Gaussian(torch.full((4, 3), 1e30), std=1e15))
    assert found.isfinite().all()
    assert (found.diff() >= 0).all()


def test_missing_values_are_left_out() -> None:
    def model(x: Any) -> Any:
        return torch.tanh(torch.nan_to_num(x))

    x = rows(12, 0)
    x[::2, 1] = torch.nan
    found = ua.calibrate(model, x, std=STD, samples=8)
    assert torch.equal(found.inputs[0], fitted_range(ua.Gaussian(x.nan_to_num(), std=STD)))
    calibrated(model, ua.Gaussian(x, std=STD), found)


def test_ranges_are_wider_where_the_fitted_inputs_differ() -> None:
    x = rows(40, 0, 50) * torch.exp(1.5 * rows(40, 1, 1))
    few, many = (fitted_range(ua.Gaussian(x[:n], std=STD)) for n in (4, 40))
    for fitted in (few, many):
        low, least, greatest, high = fitted[2].tolist()
        assert least - low >= math.log(2) - 1e-9
        assert high - greatest >= math.log(2) - 1e-9
        assert high - low > 2 * 3 * 1.5 * 0.8  # three standard deviations on each side, about
    assert fitted[0, 3] - fitted[0, 2] == pytest.approx(math.log(4))


def test_bad_options_are_refused(
    digits: nn.Module, fresh: ua.Gaussian, calibration: ua.Calibration
) -> None:
    with pytest.raises(ValueError, match="outside must be 'error', 'warn' or 'ignore', not 'no'"):
        calibrated(digits, fresh, calibration, outside="no")
    with pytest.raises(ValueError, match="check=2 samples tell nothing"):
        calibrated(digits, fresh, calibration, check=2)
    with pytest.raises(TypeError, match="check must be a whole number"):
        calibrated(digits, fresh, calibration, check=True)


# ------------------------------------------------------------------ samples beside it


def test_samples_beside_it_give_the_standard_errors(
    digits: nn.Module, calibration: ua.Calibration, fresh: ua.Gaussian, truth: ua.Gaussian
) -> None:
    plain = calibrated(digits, fresh, calibration)
    y = calibrated(digits, fresh, calibration, check=32)
    assert torch.equal(y.var, plain.var)
    assert torch.equal(y.mean, plain.mean)
    assert not torch.equal(y.standard_error.std, plain.standard_error.std)
    assert 0.5 < rms((y.std - truth.std) / y.standard_error.std) < 1.4
    assert "check=32" in str(y.provenance)
    with pytest.raises(ValueError, match="does not run the model on the mean"):
        _ = y.nominal


def test_samples_beside_it_contradict_a_calibration_that_is_off(
    digits: nn.Module, calibration: ua.Calibration, fresh: ua.Gaussian
) -> None:
    last = calibration.factors[-1]
    wrong = replace(calibration, factors=(*calibration.factors[:-1], last / 9))
    with pytest.warns(
        UserWarning, match='method "calibrated" is off: its standard deviations are 0.2'
    ):
        y = ua.propagate(digits, fresh, "calibrated", calibration=wrong, check=8)
    assert (y.standard_error.std > y.std).float().mean() > 0.8


# ------------------------------------------------------------------ files, programs, threads


def test_a_file_keeps_errors_and_ranges(calibration: ua.Calibration, tmp_path: Path) -> None:
    calibration.save(tmp_path / "factors")
    loaded = ua.Calibration.load(tmp_path / "factors")
    assert torch.equal(loaded.held_out, calibration.held_out)
    assert torch.equal(loaded.inputs, calibration.inputs)
    assert repr(loaded) == repr(calibration)
    replace(calibration, held_out=torch.zeros(0, 2).double()).save(tmp_path / "factors")
    assert ua.Calibration.load(tmp_path / "factors").held_out.shape == (0, 2)


def test_an_eager_module_checks_and_a_program_does_not(
    digits: nn.Module, images: Tensor, calibration: ua.Calibration, tmp_path: Path
) -> None:
    module = ua.as_module(digits, "calibrated", calibration=calibration).eval()
    with pytest.warns(UserWarning, match="24 of 24 items differ"):
        expected = module(images, 0.2)
    with pytest.raises(ValueError, match="24 of 24 items differ"):
        module(images, 4.0)
    batch = torch.export.Dim("batch")
    var = torch.full_like(images, 0.2)
    program = torch.export.export(
        module, (images, var), dynamic_shapes=({0: batch}, {0: batch}), strict=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = program.module()(images[:5], var[:5])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b[:5])
    # what it is tried on is made up, and may be like nothing that was fitted
    assert ua.export(module, tmp_path / "digits.pt2", torch.zeros(1, 1, 8, 8), 9.0) < 1e-4
    assert (tmp_path / "digits.pt2").exists()


def test_a_program_with_samples_beside_it_is_the_same(
    digits: nn.Module, images: Tensor, calibration: ua.Calibration
) -> None:
    module = ua.as_module(digits, "calibrated", calibration=calibration, check=8).eval()
    program = torch.export.export(module, (images, torch.full_like(images, 0.04)), strict=False)
    expected = ua.as_module(digits, "calibrated", calibration=calibration).eval()(images, 0.04)
    found = program.module()(images, torch.full_like(images, 0.04))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_transforms_do_not_look_at_values(digits: nn.Module, calibration: ua.Calibration) -> None:
    images = digits_images()[0][:3]

    def spread(image: Tensor, std: Tensor) -> Tensor:
        x = ua.Gaussian(image.unsqueeze(0), std=std)
        y = calibrated(digits, x, calibration)
        return y.std.squeeze(0)

    levels = torch.tensor([0.01, 0.2, 9.0])
    found = torch.vmap(spread)(images, levels)
    x = ua.Gaussian(images, std=levels.view(3, 1, 1, 1))
    expected = calibrated(digits, x, calibration, outside="ignore")
    torch.testing.assert_close(found, expected.std.clone())
    torch.func.grad(lambda level: spread(images[0], level).sum())(torch.tensor(9.0))
    tanh = ua.calibrate(torch.tanh, rows(8, 0), std=STD, samples=8)
    meta = ua.Gaussian(torch.zeros(2, 6, device="meta"), std=9.0)
    assert calibrated(torch.tanh, meta, tanh).shape == (2, 6)


def test_threads_have_the_same_results(
    digits: nn.Module, calibration: ua.Calibration, fresh: ua.Gaussian
) -> None:
    expected = [calibrated(digits, fresh, calibration, check=check) for check in (0, 8)]

    def run(number: int) -> ua.Gaussian:
        check = 8 * (number % 2)
        return ua.propagate(digits, fresh, "calibrated", calibration=calibration, check=check)

    with ThreadPoolExecutor(4) as pool:
        for number, y in enumerate(pool.map(run, range(12))):
            assert torch.equal(y.var, expected[number % 2].var)
            assert torch.equal(y.standard_error.std, expected[number % 2].standard_error.std)
