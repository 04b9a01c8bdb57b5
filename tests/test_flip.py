"""flip_probability(): who wins, against scipy, quadrature and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import uaprop as ua
from uaprop.covariance import Finished

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
