"""flip_probability(): who wins, against scipy, quadrature and brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

import uaprop as ua
from uaprop.covariance import Finished
from uaprop.demo import digits_cnn, digits_images
from uaprop.numerics.orthant_derivatives import orthant_derivatives
from uaprop.provenance import Provenance, StandardError

F64 = torch.float64


def scores(mean: Tensor, cov: Tensor) -> ua.Gaussian:
    return ua.Gaussian._from_covariance(mean, Finished(cov.diagonal(dim1=-2, dim2=-1), cov))


def random_scores(
    classes: int, batch: int = 3, rank: int | None = None, seed: int = 0
) -> ua.Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(batch, classes, generator=generator, dtype=F64)
    root = torch.randn(batch, classes, rank or classes, generator=generator, dtype=F64)
    return scores(mean, root @ root.mT / root.shape[-1])


def by_scipy(mean: Tensor, cov: Tensor) -> Tensor:
    """``P(s_k > s_j for all j)`` by the multivariate normal's distribution function."""
    classes = len(mean)
    win = []
    for k in range(classes):
        D = -np.eye(classes)
        D[:, k] += 1
        D = np.delete(D, k, axis=0)
        normal = stats.multivariate_normal(np.zeros(classes - 1), D @ cov.numpy() @ D.T)
        normal.maxpts, normal.abseps, normal.releps = 200_000, 2e-5, 0
        win.append(normal.cdf(D @ mean.numpy()))
    return torch.tensor(win, dtype=F64)


def by_quadrature(mean: Tensor, std: Tensor) -> Tensor:
    """``∫ φ_k(s) Π_{j≠k} Φ_j(s) ds``, for independent scores, by the trapezoidal rule."""
    low, high = mean.min() - 12 * std.max(), mean.max() + 12 * std.max()
    s = torch.linspace(float(low), float(high), 20_001, dtype=F64).numpy()
    z = (s[:, None] - mean.numpy()) / std.numpy()
    behind = stats.norm.logcdf(z)
    density = stats.norm.logpdf(z) - np.log(std.numpy()) - behind
    win = np.exp(density + behind.sum(1, keepdims=True)).sum(0) * (s[1] - s[0])
    return torch.from_numpy(win)


def test_two_classes_are_exact_far_into_the_tail() -> None:
    gap = torch.tensor([0.0, 0.3, 1.0, 5.0, 10.0, 30.0], dtype=F64)
    mean = torch.stack([gap, torch.zeros_like(gap)], 1)
    cov = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64).expand(len(gap), 2, 2)
    got = ua.flip_probability(scores(mean, cov))
    expected = torch.from_numpy(stats.norm.sf(gap.numpy() / math.sqrt(2)))
    torch.testing.assert_close(got.flip, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(got.win[:, 1], expected, rtol=1e-12, atol=0)
    assert got.predicted.tolist() == [0] * len(gap)


@pytest.mark.parametrize("classes", [3, 5, 10])
def test_correlated_scores_agree_with_scipy(classes: int) -> None:
    y = random_scores(classes)
    got = ua.flip_probability(y)
    for row in range(len(y)):
        expected = by_scipy(y.loc[row], y.covariance()[row])
        torch.testing.assert_close(got.win[row], expected, rtol=0, atol=2e-4)
        predicted = int(y.loc[row].argmax())
        assert int(got.predicted[row]) == predicted
        assert float(got.flip[row]) == pytest.approx(1 - float(expected[predicted]), abs=2e-4)


@pytest.mark.parametrize("lead", [0.0, 3.0, 6.5])
def test_independent_scores_agree_with_quadrature(lead: float) -> None:
    mean = torch.tensor([lead, 0.5, 0.2, 0.0, -0.4, -2.0], dtype=F64)
    std = torch.tensor([0.6, 1.0, 0.3, 1.2, 0.9, 0.1], dtype=F64)
    got = ua.flip_probability(ua.Gaussian(mean, std=std))
    expected = by_quadrature(mean, std)
    torch.testing.assert_close(got.win, expected, rtol=2e-3, atol=1e-5)
    others = expected.sum() - expected[got.predicted]
    torch.testing.assert_close(got.flip, others, rtol=2e-3, atol=0)


def test_tiny_flips_keep_their_digits() -> None:
    mean = torch.tensor([5.9, 0.0, 0.1, -0.1, 0.2, 0.05, -0.3, 0.0, 0.1, 0.0], dtype=F64)
    expected = by_quadrature(mean, torch.full((10,), 0.8, dtype=F64))
    assert 1e-7 < 1 - expected[0] < 1e-5
    got = ua.flip_probability(ua.Gaussian(mean, std=0.8))
    torch.testing.assert_close(got.flip, expected[1:].sum(), rtol=1e-3, atol=0)
    single = ua.flip_probability(ua.Gaussian(mean.float(), std=0.8))
    torch.testing.assert_close(single.flip.double(), expected[1:].sum(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_singular_covariances_agree_with_brute_force(rank: int) -> None:
    y = random_scores(6, rank=rank, seed=rank)
    got = ua.flip_probability(y)
    count = 200_000
    drawn = y.sample(count, generator=torch.Generator().manual_seed(1)).argmax(-1)
    share = torch.stack([(drawn == k).double().mean(0) for k in range(6)], -1)
    error = (got.win * (1 - got.win) / count).sqrt() + 1e-5
    assert ((share - got.win).abs() / error).max() < 4.5


def test_one_common_direction_is_exact() -> None:
    """Scores on one line, ``m + b z``: the winner depends on one normal variable only."""
    mean = torch.tensor([1.0, 0.0, -2.0], dtype=F64)
    slope = torch.tensor([0.0, 1.0, 3.0], dtype=F64)
    got = ua.flip_probability(scores(mean, torch.outer(slope, slope)))
    # the second would win between 1 and 1: the first below z = 1, the third above
    ahead = stats.norm.sf(1.0)
    torch.testing.assert_close(got.win, torch.tensor([1 - ahead, 0.0, ahead], dtype=F64))


def test_certain_scores_have_a_certain_winner() -> None:
    mean = torch.tensor([[0.1, 0.3, 0.2], [1.0, 1.0, 0.0], [2.0, 2.0, 2.0]])
    got = ua.flip_probability(ua.Gaussian(mean, 0.0))
    third = 1 / 3
    expected = torch.tensor([[0, 1, 0], [0.5, 0.5, 0], [third, third, third]])
    torch.testing.assert_close(got.win, expected)
    torch.testing.assert_close(got.flip, torch.tensor([0.0, 0.5, 2 / 3]))
    # noise that moves all scores alike changes nothing
    common = scores(mean.double(), torch.ones(3, 3, 3, dtype=F64))
    torch.testing.assert_close(ua.flip_probability(common).win, expected.double())


def test_equal_scores_share_what_they_win() -> None:
    """The first two are the same variable; the third is certain."""
    cov = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=F64)
    got = ua.flip_probability(scores(torch.tensor([0.0, 0.0, 1.0], dtype=F64), cov))
    ahead = stats.norm.sf(1.0)
    expected = torch.tensor([ahead / 2, ahead / 2, 1 - ahead], dtype=F64)
    torch.testing.assert_close(got.win, expected)


def test_rounding_below_zero_does_no_harm() -> None:
    root = torch.randn(4, 12, 3, generator=torch.Generator().manual_seed(0))
    cov = root @ root.mT - 1e-6 * torch.eye(12)  # of rank 3, made indefinite
    mean = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    assert torch.linalg.eigvalsh(cov).min() < 0
    clean = scores(mean.double(), (root @ root.mT).double())
    got, expected = (ua.flip_probability(y) for y in (scores(mean, cov), clean))
    torch.testing.assert_close(got.win.double(), expected.win, rtol=0, atol=2e-3)


@pytest.mark.parametrize("lead", [0.0, 3.2, 7.0])
def test_many_contenders_agree_with_quadrature(lead: float) -> None:
    mean = 0.5 * torch.randn(100, generator=torch.Generator().manual_seed(2), dtype=F64)
    mean[7] += lead
    std = torch.linspace(0.7, 1.0, 100, dtype=F64)
    expected = by_quadrature(mean, std)
    got = ua.flip_probability(ua.Gaussian(mean, std=std))
    rest = expected.sum() - expected[got.predicted]
    torch.testing.assert_close(got.flip, rest, rtol=0.01, atol=0)
    assert (got.win - expected).abs().max() < 0.006
    assert float(got.win.sum()) == pytest.approx(1)


def test_many_equal_contenders_share() -> None:
    """Of a hundred scores the first two are the same variable, and ahead."""
    mean = torch.zeros(100, dtype=F64)
    mean[:2] = 3.0
    cov = 0.25 * torch.eye(100, dtype=F64)
    cov[0, 1] = cov[1, 0] = 0.25
    got = ua.flip_probability(scores(mean, cov))
    assert float(got.win[0]) == pytest.approx(float(got.win[1]), rel=1e-3)
    assert float(got.flip) == pytest.approx(0.5, abs=1e-3)


def test_hopeless_classes_of_many_are_left_out() -> None:
    mean = torch.cat([torch.tensor([1.0, 0.5, 0.0]), torch.full((997,), -40.0)]).double()
    got = ua.flip_probability(ua.Gaussian(mean, 1.0))
    few = ua.flip_probability(ua.Gaussian(mean[:3], 1.0))
    torch.testing.assert_close(got.win[:3], few.win, rtol=0, atol=1e-4)
    assert got.win[3:].max() < 1e-12


def against_a_rival(classes: int, share: float) -> tuple[Tensor, Tensor]:
    """Independent scores: one ahead, a rival, and others of which each beats it so much more rarely."""
    ahead = stats.norm.sf(1 / math.sqrt(2))
    behind = math.sqrt(2) * stats.norm.isf(share * ahead)
    mean = torch.tensor([0.0, -1.0] + (classes - 2) * [-behind], dtype=F64)
    return mean, torch.ones(classes, dtype=F64)


def test_classes_that_together_matter_are_kept_though_each_is_rare() -> None:
    """Each beats the predicted one less than a millionth as often as the rival does, together more often."""
    mean, std = against_a_rival(40, 2e-7)
    got = ua.flip_probability(ua.Gaussian(mean, std=std)).win
    expected = by_quadrature(mean, std)
    torch.testing.assert_close(got[2:], expected[2:], rtol=0.1, atol=0)


def test_classes_that_do_not_even_matter_together_have_zero() -> None:
    mean, std = against_a_rival(40, 1e-9)
    got = ua.flip_probability(ua.Gaussian(mean, std=std)).win
    assert (got[16:] == 0).all()  # so many are always kept
    torch.testing.assert_close(got[:2], by_quadrature(mean, std)[:2], rtol=0, atol=1e-5)


def test_of_few_classes_even_the_rarest_has_its_probability() -> None:
    mean, std = against_a_rival(16, 1e-12)
    got = ua.flip_probability(ua.Gaussian(mean, std=std)).win
    torch.testing.assert_close(got, by_quadrature(mean, std), rtol=0.1, atol=0)


def test_classes_that_win_because_the_predicted_one_falls_are_kept() -> None:
    """Of opposite sign to the predicted one they beat it far more often than independent ones would."""
    sources = torch.zeros(40, 40, dtype=F64)
    sources[:2, 0] = sources[1, 1] = 1.0  # the rival goes along with the predicted one
    sources[2:, 0] = -0.9
    sources[2:, 2:] = 0.1 * torch.eye(38, dtype=F64)
    mean = torch.tensor([0.0, -1.0] + 38 * [-8.0], dtype=F64)
    got = ua.flip_probability(scores(mean, sources @ sources.T)).win
    ahead = stats.norm.sf(8 / math.sqrt(1.9**2 + 0.1**2))
    assert 0.1 * ahead < float(got[2:].sum()) < 38 * ahead
    assert got.min() > 0


@given(
    st.integers(2, 7),
    st.integers(0, 10_000),
    st.integers(0, 7),
    st.sampled_from([0.01, 1.0, 30.0]),
)
def test_probabilities_add_up_whatever_the_order(
    classes: int, seed: int, rank: int, scale: float
) -> None:
    y = random_scores(classes, batch=2, rank=max(1, min(rank, classes)), seed=seed)
    y = scores(y.loc, scale**2 * y.covariance() * (rank > 0))
    got = ua.flip_probability(y, samples=256)
    assert torch.isfinite(got.win).all()
    assert got.win.min() >= 0
    torch.testing.assert_close(got.win.sum(1), torch.ones(2, dtype=F64))
    kept = got.win.gather(1, got.predicted.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(got.flip, 1 - kept)
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    turned = scores(y.loc[:, order], y.covariance()[:, order][:, :, order])
    other = ua.flip_probability(turned, samples=256)
    torch.testing.assert_close(other.win, got.win[:, order], rtol=0, atol=5e-3)
    torch.testing.assert_close(order[other.predicted], got.predicted)


def test_shapes_dtypes_and_seeds() -> None:
    y = random_scores(5)
    whole = ua.flip_probability(y, seed=3)
    assert whole.win.shape == (3, 5)
    assert whole.predicted.shape == whole.flip.shape == (3,)
    again = ua.flip_probability(y, seed=3)
    assert torch.equal(whole.win, again.win)
    assert not torch.equal(whole.win, ua.flip_probability(y, seed=4).win)
    one = ua.flip_probability(scores(y.loc[1], y.covariance()[1]), seed=3)
    assert one.win.shape == (5,)
    assert one.flip.ndim == one.predicted.ndim == 0
    torch.testing.assert_close(one.win, whole.win[1])
    assert ua.flip_probability(ua.Gaussian(torch.zeros(2, 3), 1.0)).win.dtype == torch.float32
    half = ua.Gaussian(torch.zeros(2, 3, dtype=torch.float16), 1.0)
    assert ua.flip_probability(half).flip.dtype == torch.float32
    assert ua.flip_probability(ua.Gaussian(torch.zeros(0, 3), 1.0)).win.shape == (0, 3)
    weight = torch.ones(2, 3, requires_grad=True)
    assert not ua.flip_probability(ua.Gaussian(weight, 1.0)).win.requires_grad


# ------------------------------------------------------------ what is predicted


class Shifted(nn.Module):
    """Two scores, of which noise raises the second one by 1 on average."""

    def forward(self, x: Any) -> Any:
        raised = x.square().mean(1) + x.sum(1) / 10
        return torch.stack([0 * raised + 0.6, raised], 1)


def shifted(method: str = "hybrid", **options: Any) -> ua.Gaussian:
    x = ua.Gaussian(torch.zeros(2, 100, dtype=F64), 1.0)
    y: ua.Gaussian = ua.propagate(Shifted(), x, method, **options)
    return y


def test_the_prediction_is_that_of_the_network_without_noise() -> None:
    y = shifted(samples=256)
    got = ua.flip_probability(y)
    assert got.reference == "nominal"
    assert got.predicted.tolist() == [0, 0]
    noise = torch.randn(20_000, 100, generator=torch.Generator().manual_seed(0), dtype=F64)
    changed = (Shifted()(noise).argmax(1) != 0).double().mean()
    assert 0.6 < changed < 0.7
    torch.testing.assert_close(got.flip, changed.expand(2), rtol=0, atol=0.03)
    torch.testing.assert_close(got.flip, 1 - got.win[:, 0])
    by_name = ua.flip_probability(y, reference="nominal")
    assert torch.equal(by_name.flip, got.flip)


def test_the_prediction_of_the_mean_is_there_by_name() -> None:
    y = shifted(samples=256)
    got = ua.flip_probability(y, reference="mean")
    assert got.reference == "mean"
    assert got.predicted.tolist() == [1, 1]
    torch.testing.assert_close(got.flip, got.win[:, 0])
    assert torch.equal(got.win, ua.flip_probability(y).win)


def test_without_a_nominal_output_it_is_the_means() -> None:
    for y in (shifted("diagonal"), ua.Gaussian(torch.tensor([0.6, 1.0]), 1.0)):
        got = ua.flip_probability(y)
        assert got.reference == "mean"
        assert torch.equal(got.predicted, y.loc.argmax(-1))
        with pytest.raises(ValueError, match="nominal"):
            ua.flip_probability(y, reference="nominal")


def nominal(y: ua.Gaussian, scores: Tensor) -> ua.Gaussian:
    return y.with_provenance(Provenance("hybrid", nominal=scores))


@pytest.mark.parametrize("classes", [3, 10])
def test_a_prediction_that_is_not_the_favourite_agrees_with_scipy(classes: int) -> None:
    y = random_scores(classes, seed=5)
    for least in (False, True):
        order = y.loc.argsort(1, descending=True)
        predicted = order[:, -1] if least else order[:, 1]
        scores = torch.nn.functional.one_hot(predicted, classes).double()
        got = ua.flip_probability(nominal(y, scores))
        assert torch.equal(got.predicted, predicted)
        for row in range(len(y)):
            expected = by_scipy(y.loc[row], y.covariance()[row])
            torch.testing.assert_close(got.win[row], expected, rtol=0, atol=2e-4)
            stay = float(expected[predicted[row]])
            assert float(got.flip[row]) == pytest.approx(1 - stay, abs=2e-4)


def test_a_prediction_far_behind_has_a_probability_all_the_same() -> None:
    """Its own one keeps its digits, and what few classes can do is not lost among the many."""
    mean = torch.cat([torch.tensor([0.0, -1.0, -9.5]), torch.full((300,), -9.0)]).double()
    std = torch.full((303,), 0.8, dtype=F64)
    expected = by_quadrature(mean, std)
    y = ua.Gaussian(mean, std=std)
    got = ua.flip_probability(nominal(y, torch.eye(303, dtype=F64)[2]))
    assert int(got.predicted) == 2
    assert float(expected[2]) < 1e-15
    torch.testing.assert_close(got.win[:3], expected[:3], rtol=0.02, atol=0)
    assert float(got.flip) == pytest.approx(1)


def test_of_many_contenders_one_that_is_not_the_favourite_agrees_with_quadrature() -> None:
    mean = 0.5 * torch.randn(100, generator=torch.Generator().manual_seed(2), dtype=F64)
    std = torch.linspace(0.7, 1.0, 100, dtype=F64)
    expected = by_quadrature(mean, std)
    second = int(mean.argsort()[-2])
    got = ua.flip_probability(
        nominal(ua.Gaussian(mean, std=std), torch.eye(100, dtype=F64)[second])
    )
    assert int(got.predicted) == second
    assert float(got.flip) == pytest.approx(1 - float(expected[second]), abs=0.006)


def test_nominal_scores_that_are_not_numbers_are_refused() -> None:
    y = nominal(random_scores(3), torch.full((3, 3), torch.nan))
    with pytest.raises(ValueError, match="is NaN"):
        ua.flip_probability(y)
    assert ua.flip_probability(y, reference="mean").reference == "mean"
    with pytest.raises(ValueError, match='"nominal" or "mean"'):
        ua.flip_probability(y, reference="median")


# ------------------------------------------------------------ standard errors


@pytest.mark.parametrize("n", [1, 2, 3])
def test_derivatives_of_an_orthant_probability_agree_with_differences(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    root = torch.randn(2, n, n, generator=generator, dtype=F64)
    cov = root @ root.mT + 0.2 * torch.eye(n)
    mean = torch.randn(2, n, generator=generator, dtype=F64)
    points = SobolEngine(max(n - 2, 1), scramble=True, seed=0).draw(2**12, dtype=F64)
    gradient, hessian = orthant_derivatives(mean, cov, points.clamp_min(1e-9))
    step = 0.05 * np.eye(n)
    for row in range(2):
        normal = stats.multivariate_normal(np.zeros(n), cov[row].numpy())
        normal.maxpts, normal.abseps, normal.releps = 400_000, 1e-7, 0
        m = mean[row].numpy()
        for i in range(n):
            slope = (normal.cdf(m + step[i]) - normal.cdf(m - step[i])) / 0.1
            assert float(gradient[row, i]) == pytest.approx(slope, rel=0.02, abs=1e-4)
            for j in range(n):
                signs = ((1, 1), (-1, -1), (1, -1), (-1, 1))
                pp, mm, pm, mp = (normal.cdf(m + a * step[i] + b * step[j]) for a, b in signs)
                bend = (pp + mm - pm - mp) / (0.1 * 0.1)
                assert float(hessian[row, i, j]) == pytest.approx(bend, rel=0.03, abs=2e-3)


def gaussian_network(mean: Tensor, root: Tensor) -> tuple[nn.Module, ua.Gaussian]:
    """Scores ``mean + root ε``, so that plain samples of it are samples of that Gaussian."""
    model = nn.Linear(root.shape[1], len(mean)).double().eval().requires_grad_(False)
    model.weight.copy_(root)
    model.bias.copy_(mean)
    return model, ua.Gaussian(torch.zeros(1, root.shape[1], dtype=F64), 1.0)


def test_the_error_of_two_classes_is_the_textbooks() -> None:
    """``z = gap/σ`` has the variance ``1/n + z²/(2n)``."""
    count = 4000
    for gap in (0.3, 1.0, 2.5):
        model, x = gaussian_network(
            torch.tensor([gap, 0.0], dtype=F64), torch.tensor([[0.8, 0.6], [0.0, 0.0]], dtype=F64)
        )
        got = ua.flip_probability(ua.propagate(model, x, "samples", samples=count))
        assert got.standard_error is not None
        expected = stats.norm.pdf(gap) * math.sqrt((1 + gap**2 / 2) / count)
        assert float(got.standard_error) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("gap", [1.0, 9.0])
def test_the_error_of_a_flip_is_that_of_no_flip(gap: float) -> None:
    """Also where a flip is so likely that one minus its probability has no digits left."""
    model, x = gaussian_network(
        torch.tensor([gap, 0.0], dtype=F64), torch.tensor([[1.0], [0.0]], dtype=F64)
    )
    y = ua.propagate(model, x, "samples", samples=4000)
    rare = ua.flip_probability(y, reference="mean")
    likely = ua.flip_probability(
        y.with_provenance(replace(y.provenance, nominal=torch.tensor([[0.0, 1.0]], dtype=F64)))
    )
    assert float(rare.flip) == pytest.approx(float(stats.norm.sf(gap)), rel=0.9)
    assert int(likely.predicted) == 1
    assert rare.standard_error is not None
    assert float(rare.standard_error) > 0
    torch.testing.assert_close(likely.standard_error, rare.standard_error, rtol=1e-6, atol=0)


ROOT = torch.tensor(
    [[0.9, 0.3, 0.0, 0.1], [0.5, -0.4, 0.2, 0.0], [0.2, 0.5, 0.6, 0.0], [-0.3, 0.1, 0.3, 0.8]],
    dtype=F64,
)


def z_scores(y: list[ua.Gaussian], truth: Tensor) -> Tensor:
    found = [ua.flip_probability(each, samples=256) for each in y]
    errors = torch.stack([each.standard_error for each in found])  # type: ignore[misc]
    return (torch.stack([each.flip for each in found]) - truth) / errors


@pytest.mark.parametrize("lead", [0.0, 0.8, 2.0, 3.0])
def test_the_error_is_as_large_as_results_differ(lead: float) -> None:
    """Also of flips that are rare, where the derivative changes much within the error."""
    mean = torch.tensor([lead, 0.2, 0.0, -0.1], dtype=F64)
    model, x = gaussian_network(mean, ROOT)
    truth = ua.flip_probability(
        nominal(scores(mean.unsqueeze(0), (ROOT @ ROOT.T).unsqueeze(0)), model(x.loc))
    ).flip
    y = [ua.propagate(model, x, "samples", samples=50, seed=seed) for seed in range(100)]
    z = z_scores(y, truth)
    assert 0.8 < float(z.square().mean().sqrt()) < 1.25


def test_the_error_of_a_networks_flips_is_as_large_as_results_differ() -> None:
    images, std = digits_images()[0][:12], 0.2
    model = digits_cnn()
    x = ua.Gaussian(images, std=std)
    truth = ua.flip_probability(
        ua.propagate(model, x, "samples", samples=6000, antithetic=True, keys=range(12))
    ).flip
    keys = [list(range(12 * seed, 12 * seed + 12)) for seed in range(20)]
    y = [ua.propagate(model, x, "hybrid", samples=16, keys=each) for each in keys]
    z = z_scores(y, truth)
    assert 0.7 < float(z.square().mean().sqrt()) < 1.3


def test_what_is_sampled_has_covariances_as_uncertain_as_those_of_samples() -> None:
    """Standard deviations that are steadied across outputs do not make correlations better known."""
    y, count = random_scores(4), 20
    std = y.cov.var.sqrt()

    def error(of_std: Tensor, options: dict[str, Any]) -> Tensor:
        errors = StandardError(std / math.sqrt(count), of_std)
        told = Provenance("hybrid", options, standard_error=errors)
        found = ua.flip_probability(y.with_provenance(told)).standard_error
        assert found is not None
        return found

    of_samples = error(std / math.sqrt(2 * (count - 1)), {})
    torch.testing.assert_close(error(0.1 * std / count, {"samples": count}), of_samples)
    assert (error(0.1 * std / count, {}) < 0.99 * of_samples).all()
    assert (error(std / 2, {"samples": count}) > 1.01 * of_samples).all()


def test_only_results_with_standard_errors_give_one() -> None:
    for y in (shifted("linear"), random_scores(3)):
        assert ua.flip_probability(y).standard_error is None
    y = shifted(samples=16)
    got, one = ua.flip_probability(y), ua.flip_probability(y[1])
    assert got.standard_error is not None
    assert one.standard_error is not None
    assert got.standard_error.shape == (2,)
    assert one.standard_error.ndim == 0
    torch.testing.assert_close(one.standard_error, got.standard_error[1])
    assert float(one.standard_error) > 0


def test_what_is_certain_has_no_error() -> None:
    y = ua.propagate(
        lambda x: x[:, :3] * torch.tensor([1.0, 0.0, 0.0]),
        ua.Gaussian(torch.tensor([[60.0, 0, 0]]), 1.0),
        "samples",
    )
    got = ua.flip_probability(y)
    assert float(got.flip) == 0
    assert float(got.standard_error) == 0  # type: ignore[arg-type]


def test_the_error_of_many_classes_is_that_of_the_likeliest() -> None:
    """Of a hundred classes ninety have no chance; those before are few enough to be looked at."""
    mean = torch.cat([torch.tensor([1.0, 0.4, 0.0]), torch.full((97,), -30.0)]).double()
    x = ua.Gaussian(mean.unsqueeze(0), 1.0)
    y = ua.propagate(nn.Identity(), x, "samples", samples=200)
    errors = [ua.flip_probability(each).standard_error for each in (y, y[:, :3])]
    torch.testing.assert_close(*errors, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("y", "error", "words"),
    [
        (torch.zeros(3), TypeError, r"needs a ua\.Gaussian"),
        (ua.Gaussian(torch.zeros(()), 1.0), ValueError, r"not \(\)"),
        (ua.Gaussian(torch.zeros(2, 3, 4), 1.0), ValueError, "batch, classes"),
        (ua.Gaussian(torch.zeros(4, 1), 1.0), ValueError, "two classes"),
        (ua.Gaussian(torch.full((2,), torch.nan), 1.0), ValueError, "NaN"),
        (random_scores(4).flatten(), ValueError, "not kept"),
    ],
)
def test_bad_scores_are_refused(y: ua.Gaussian, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ua.flip_probability(y)


def test_bad_numbers_are_refused() -> None:
    y = random_scores(3)
    with pytest.raises(TypeError, match="whole numbers"):
        ua.flip_probability(y, samples=10.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        ua.flip_probability(y, samples=0)
