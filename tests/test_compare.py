"""compare(): errors against Monte Carlo, where the right answer is known."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.check import Comparison
from uaprop.check.truth import Sampler, Truth

FAST: dict[str, Any] = {"samples": 4000, "repeats": 1}


@pytest.fixture(scope="module")
def linear() -> Comparison:
    """One linear layer of independent inputs, for which the diagonal method is exact."""
    torch.manual_seed(0)
    x = ua.Gaussian(torch.randn(6, 20), std=0.3)
    return ua.compare(nn.Linear(20, 30), x, ["diagonal", ("samples", {"samples": 50})], **FAST)


def test_an_exact_method_is_within_the_noise(linear: Comparison) -> None:
    row = linear.rows[0]
    assert row.errors is not None
    assert row.outputs == linear.outputs == 180
    assert row.errors.std_error < 1.3 * linear.noise.std_error
    assert row.errors.mean_error < 1.3 * linear.noise.mean_error
    assert abs(row.errors.std_bias) < 4 * linear.noise.std_bias


def test_the_noise_is_that_of_gaussian_draws(linear: Comparison) -> None:
    expected = math.sqrt(2 / math.pi) / math.sqrt(2 * linear.samples)
    assert linear.noise.std_error == pytest.approx(expected, rel=0.1)
    assert linear.noise.mean_error == pytest.approx(expected * math.sqrt(2), rel=0.1)
    assert linear.noise.std_bias < linear.noise.std_error


def test_monte_carlo_is_as_wrong_as_so_many_draws_make_it(linear: Comparison) -> None:
    point = linear.monte_carlo[5]
    assert point.draws == 32
    assert point.std_error is not None
    torch.manual_seed(0)
    x = ua.Gaussian(torch.randn(6, 20), std=0.3)
    # keys: independent noise for each item, so that errors average out over 180 outputs
    method = ("samples", {"samples": 50, "keys": list(range(6))})
    (row,) = ua.compare(nn.Linear(20, 30), x, [method], **FAST).rows
    assert row.errors is not None
    assert row.errors.std_error * math.sqrt(50 / 32) == pytest.approx(point.std_error, rel=0.2)
    assert row.errors.mean_error * math.sqrt(50 / 32) == pytest.approx(point.mean_error, rel=0.2)


def test_a_known_bias_is_found() -> None:
    """A sum of four copies has deviation 4, where independence makes it 2."""

    class Copies(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1 + x * 1 + x * 1 + x * 1

    found = ua.compare(Copies(), ua.Gaussian(torch.zeros(5, 8), 1.0), ["diagonal"], **FAST)
    errors = found.rows[0].errors
    assert errors is not None
    assert errors.std_error == pytest.approx(0.5, abs=3 * found.noise.std_error)
    assert errors.std_bias == pytest.approx(-0.5, abs=3 * found.noise.std_error)


def test_a_known_error_of_the_mean_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from uaprop.check import contestant

    def shifted(model: Any, x: ua.Gaussian, method: str, **options: Any) -> ua.Gaussian:
        return ua.Gaussian(x.loc + 0.5 * x.std, std=3 * x.std)

    monkeypatch.setattr(contestant, "propagate", shifted)
    x = ua.Gaussian(torch.randn(40), std=torch.rand(40) + 0.1)
    found = ua.compare(nn.Identity(), x, "diagonal", **FAST)
    errors = found.rows[0].errors
    assert errors is not None
    assert errors.mean_error == pytest.approx(0.5, abs=4 * found.noise.mean_error)
    assert errors.std_bias == pytest.approx(2.0, abs=0.1)


def test_time_is_in_passes_and_in_draws(linear: Comparison) -> None:
    for row in linear.rows:
        assert row.seconds is not None
        assert row.passes is not None
        assert row.passes == pytest.approx(row.seconds / linear.forward_seconds)
        assert row.draws == int(row.seconds / linear.draw_seconds)
    passes = [point.passes for point in linear.monte_carlo]
    assert passes == sorted(passes)


def test_too_few_draws_have_no_error() -> None:
    x = ua.Gaussian(torch.zeros(30), 1.0)
    truth = Truth.of(Sampler(lambda draw: draw, [x], 0), 2000)
    assert truth.errors(0) == (None, None)
    std_error, mean_error = truth.errors(1)
    assert std_error is None
    assert mean_error == pytest.approx(math.sqrt(2 / math.pi), rel=0.03)
    for count in (2, 3, 10, 500, 100_000):
        std_error, mean_error = truth.errors(count)
        assert mean_error == pytest.approx(math.sqrt(2 / math.pi / count), rel=0.1)
        expected = float(
            (torch.distributions.Chi2(count - 1.0).sample((40_000,)) / (count - 1))
            .sqrt()
            .sub(1)
            .abs()
            .mean()
        )
        assert std_error == pytest.approx(expected, rel=0.1)


def test_truth_is_that_of_the_method_samples() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).double()
    x = ua.Gaussian(torch.randn(5, 4, dtype=torch.float64), 0.3)
    with torch.no_grad():
        truth = Truth.of(Sampler(model, [x], 0), 20_000)
    y = ua.propagate(model, x, method="samples", samples=20_000)
    torch.testing.assert_close(truth.std.view(5, 3), y.std + 0, rtol=0.03, atol=0)
    z = (truth.mean.view(5, 3) - y.mean) / (y.std * math.sqrt(2 / 20_000))
    assert z.abs().max() < 4.5


@pytest.mark.parametrize("kept", [4, 1])
def test_large_outputs_keep_draws_of_some(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from uaprop.check import truth as module

    monkeypatch.setattr(module, "_KEPT_ELEMENTS", kept * 4000)
    x = ua.Gaussian(torch.zeros(20), torch.ones(20).index_fill(0, torch.tensor(0), 0.0))
    truth = Truth.of(Sampler(lambda draw: draw, [x], 0), 4000)
    assert truth.draws.shape == (4000, max(1, kept - 1))
    std_error, _ = truth.errors(100)
    assert std_error == pytest.approx(math.sqrt(1 / math.pi / 100), rel=0.3)
    assert truth.errors(100, torch.tensor([7])) == truth.errors(100)


def test_every_method_is_compared_by_default() -> None:
    from uaprop.methods.propagate import METHODS

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    found = ua.compare(model, ua.Gaussian(torch.zeros(2, 3), 1.0), samples=200, repeats=1)
    # calibrated needs a calibration
    assert [row.method for row in found.rows] == [m for m in METHODS if m != "calibrated"]
    assert all(row.failure is None and row.errors is not None for row in found.rows)


def test_a_method_that_fails_shows_its_error() -> None:
    x = ua.Gaussian(torch.ones(4, 3), 0.1)
    found = ua.compare(lambda x: torch.erfinv(0.1 * x.tanh()), x, ["diagonal", "samples"], **FAST)
    failed, worked = found.rows
    assert failed.errors is None
    assert failed.failure is not None
    assert failed.failure.startswith("UnsupportedOperation: ")
    assert "erfinv" in failed.failure
    assert "erfinv" in str(found)
    assert worked.failure is None
    unknown = ua.compare(nn.Identity(), x, [("diagonal", {"magic": 1})], **FAST).rows[0]
    assert unknown.label == "diagonal(magic=1)"
    assert unknown.failure == "TypeError: method 'diagonal' has no option 'magic'; it has var_dtype"


def test_infinite_answers_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    from uaprop.check import contestant

    monkeypatch.setattr(contestant, "propagate", lambda *args, **kwargs: x * float("nan"))
    x = ua.Gaussian(torch.ones(4), 0.1)
    assert "NaN" in str(ua.compare(nn.Identity(), x, "diagonal", **FAST).rows[0].failure)


class Several(nn.Module):
    """Outputs of all sorts: random, constant, no number."""

    def forward(self, a: Any, b: Any) -> dict[str, Any]:
        steady = torch.full((2, 5), 0.1)
        return {
            "sum": a + b,
            "parts": (2 * a, [b]),
            "steady": steady,
            "name": "x",
            "n": torch.arange(3),
        }


def test_all_outputs_are_pooled_and_constants_left_out() -> None:
    a = ua.Gaussian(torch.randn(2, 3), 1.0)
    b = ua.Gaussian(torch.randn(2, 3), torch.tensor([0.0, 1.0, 4.0]))
    for inputs in ((a, b), {"a": a, "b": b}):
        found = ua.compare(Several(), inputs, "diagonal", **FAST)
        errors = found.rows[0].errors
        assert errors is not None
        assert (found.outputs, found.left_out) == (16, 12)
        assert errors.std_error < 2 * found.noise.std_error
        assert "16 outputs (12 more do not vary)" in str(found)


def test_chosen_outputs_are_compared_with_the_same_of_the_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from uaprop.check import contestant

    def chosen(model: Any, x: ua.Gaussian, method: str, outputs: list[int], **options: Any) -> Any:
        return model(x).flatten(1)[:, outputs]

    monkeypatch.setattr(contestant, "propagate", chosen)
    x = ua.Gaussian(torch.zeros(3, 2, 4), torch.rand(3, 2, 4) + 0.1)
    picked = ("diagonal", {"outputs": [7, 0]})
    row = ua.compare(nn.Identity(), x, [picked], **FAST).rows[0]
    assert row.errors is not None
    assert row.outputs == 6
    assert row.errors.std_error < 0.03  # in the order that was asked for


def test_models_that_cannot_be_vectorised_and_draw_numbers() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x if x.sum() > 1e9 else 2 * x) + torch.randn_like(x)

    before = torch.random.get_rng_state()
    x = ua.Gaussian(torch.zeros(50), 1.0)
    truth = Truth.of(Sampler(Odd(), [x], 0), 500)
    torch.random.set_rng_state(before)
    assert float(truth.std.square().mean()) == pytest.approx(5, rel=0.1)
    first, again = (ua.compare(Odd(), x, "samples", samples=200, repeats=1) for _ in range(2))
    assert first.rows[0].errors == again.rows[0].errors
    assert torch.equal(before, torch.random.get_rng_state())


def test_draws_are_not_the_methods(linear: Comparison) -> None:
    """With the same draws the method's error would vanish."""
    x = ua.Gaussian(torch.zeros(100), 1.0)
    found = ua.compare(nn.Identity(), x, [("samples", {"samples": 4000})], **FAST)
    errors = found.rows[0].errors
    assert errors is not None
    assert errors.std_error == pytest.approx(math.sqrt(2) * found.noise.std_error, rel=0.3)


def test_labels() -> None:
    x = ua.Gaussian(torch.zeros(5), 1.0)
    short = {"samples": 200, "repeats": 1}
    few = ("samples", {"samples": 2})
    assert ua.compare(nn.Identity(), x, [few], **short).rows[0].label == "samples(samples=2)"
    found = ua.compare(nn.Identity(), x, {"two draws": few, "report": "diagonal"}, **short)
    assert [row.label for row in found.rows] == ["two draws", "report"]
    assert found.rows[0].options == {"samples": 2, "seed": 0}
    assert ua.compare(nn.Identity(), x, [], **short).rows == ()
    assert "an exact method" in str(ua.compare(nn.Identity(), x, [], **short))


def test_everything_survives_json(linear: Comparison) -> None:
    plain = linear.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["rows"][0]["errors"]["std_error"] == linear.rows[0].errors.std_error  # type: ignore[union-attr]
    x = ua.Gaussian(torch.zeros(5), 1.0)
    odd = ("diagonal", {"outputs": torch.arange(2)})
    assert json.dumps(ua.compare(nn.Identity(), x, [odd], **FAST).to_dict(), allow_nan=False)


def test_the_table_is_aligned(linear: Comparison) -> None:
    lines = str(linear).splitlines()
    head, rule, *rows = lines[1:7]
    assert rule == "-" * len(head)
    assert rows[0].startswith("diagonal ")
    assert rows[1].startswith("samples(samples=50) ")
    assert [len(row) for row in rows[:2]] == [len(head)] * 2
    assert rows[3].startswith("an exact method")
    assert max(map(len, lines)) <= 110
    assert "<pre>" in linear._repr_html_()


def test_the_picture_shows_every_method(linear: Comparison, tmp_path: Path) -> None:
    figure = linear.plot(tmp_path / "comparison.png")
    assert (tmp_path / "comparison.png").stat().st_size > 20_000
    assert [axes.get_title() for axes in figure.axes] == ["Standard deviation", "Mean"]
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"Monte Carlo", "diagonal", "samples(samples=50)"} < set(shown)
    for axes in figure.axes:
        assert axes.get_xscale() == axes.get_yscale() == "log"
    assert linear.plot(str(tmp_path / "comparison.svg")) is not None


def test_a_picture_needs_matplotlib(linear: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "uaprop.plot.comparison", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'uaprop\[plot\]'"):
        linear.plot()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"methods": ["magic"]}, ValueError, "no method 'magic'; choose from auto"),
        ({"samples": 10}, ValueError, "at least 100"),
        ({"samples": 1e4}, TypeError, "whole number"),
        ({"repeats": 0}, ValueError, "repeats must be at least 1"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        ua.compare(nn.Identity(), ua.Gaussian(torch.zeros(3), 1.0), **arguments)


def test_there_must_be_something_to_compare() -> None:
    x = ua.Gaussian(torch.zeros(3), 1.0)
    with pytest.raises(TypeError, match=r"needs a ua\.Gaussian"):
        ua.compare(nn.Identity(), torch.zeros(3))
    with pytest.raises(ValueError, match="no output varies"):
        ua.compare(nn.Identity(), ua.Gaussian(torch.ones(3), 0.0), "diagonal", **FAST)
    with pytest.raises(TypeError, match="no floating-point tensor"):
        ua.compare(lambda x: torch.zeros(2, dtype=torch.long), x, "diagonal", **FAST)
    with pytest.raises(RuntimeError, match="shape"):
        ua.compare(nn.Linear(7, 2), x, "diagonal", **FAST)
