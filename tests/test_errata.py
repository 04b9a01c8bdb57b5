"""Each erratum of the report, pinned: what is printed is wrong, what the library computes is right."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad

import uaprop as ua

POINTS = [(1.0, 1.0), (-0.5, 0.25), (2.0, 4.0), (0.3, 9.0)]


def _expectation(function, m: float, v: float) -> float:
    def integrand(u: float) -> float:
        return function(m + math.sqrt(v) * u) * math.exp(-u * u / 2) / math.sqrt(2 * math.pi)

    return quad(integrand, -10, 10, points=[-m / math.sqrt(v)], epsabs=1e-13, limit=200)[0]


def _gaussian(m: float, v: float) -> ua.Gaussian:
    return ua.Gaussian(torch.tensor([m], dtype=torch.float64), v)


@pytest.mark.parametrize(("m", "v"), POINTS)
def test_erratum_1_the_sign_in_relus_variance(m: float, v: float) -> None:
    s, root = math.sqrt(v), math.sqrt(2 * math.pi)
    bell = math.exp(-m * m / (2 * v))
    cdf = 0.5 * (1 + math.erf(m / (s * math.sqrt(2))))
    first = s / root * bell + m * cdf
    printed = (v + m * m) * cdf - m * s / root * bell - first**2
    corrected = (v + m * m) * cdf + m * s / root * bell - first**2
    mean = _expectation(lambda x: max(x, 0.0), m, v)
    truth = _expectation(lambda x: (max(x, 0.0) - mean) ** 2, m, v)
    y = ua.nn.UAReLU()(_gaussian(m, v))
    assert math.isclose(y.mean.item(), mean, rel_tol=1e-9)
    assert math.isclose(y.var.item(), truth, rel_tol=1e-9)
    assert math.isclose(corrected, truth, rel_tol=1e-9)
    assert abs(printed - truth) > 0.05 * truth


def test_erratum_1_the_example() -> None:
    y = ua.nn.UAReLU()(_gaussian(1.0, 1.0))
    assert round(y.var.item(), 3) == 0.751
    sampled = ua.propagate(torch.relu, _gaussian(1.0, 1.0), method="samples", samples=200_000)
    assert abs(sampled.var.item() - 0.751) < 0.01


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize(("m", "v"), POINTS)
def test_erratum_2_the_signs_in_the_expected_loss(m: float, v: float, label: float) -> None:
    def bce(x: float) -> float:
        return math.log1p(math.exp(-abs(x))) + max(-x, 0.0) + (1 - label) * x

    s = 1 / (1 + math.exp(-m))
    curvature = 0.5 * s * (1 - s) * v
    printed = -math.log(s) - curvature - (1 - label) * m
    corrected = -math.log(s) + curvature + (1 - label) * m
    truth = _expectation(bce, m, v)
    target = torch.tensor([label], dtype=torch.float64)
    exact = ua.nn.UABCELoss()(_gaussian(m, v), target).item()
    report = ua.nn.UABCELoss("report")(_gaussian(m, v), target).item()
    assert math.isclose(exact, truth, rel_tol=1e-9)
    assert math.isclose(report, corrected, rel_tol=1e-12)
    assert abs(corrected - truth) < 0.5 * abs(printed - truth)


def test_erratum_2_taylor_is_far_off_for_large_variance() -> None:
    target = torch.zeros(1, dtype=torch.float64)
    exact = ua.nn.UABCELoss()(_gaussian(-3.0, 4.0), target).item()
    report = ua.nn.UABCELoss("report")(_gaussian(-3.0, 4.0), target).item()
    assert report < 0.8 * exact


@pytest.mark.parametrize("k", [2, 3])
def test_erratum_3_the_factor_in_average_pooling(k: int) -> None:
    x = ua.Gaussian(torch.randn(1, 1, k, k, dtype=torch.float64), torch.rand(1, 1, k, k).double())
    y = ua.nn.UAAvgPool2d(k)(x)
    total = x.cov.var.sum()
    middle, final = total / k**2, total / k**4
    sampled = ua.propagate(torch.nn.AvgPool2d(k), x, method="samples", samples=50_000)
    torch.testing.assert_close(y.cov.var.squeeze(), final)
    torch.testing.assert_close(sampled.cov.var.squeeze(), final, rtol=0.05, atol=0)
    assert middle / sampled.cov.var.squeeze() > 0.9 * k**2


@pytest.mark.parametrize(("m", "v"), [(2.0, 1.0), (1.0, 4.0)])
def test_erratum_4_lambda_is_left_open(m: float, v: float) -> None:
    """Both values in use are approximations; neither is what the exact form gives."""
    truth = _expectation(lambda x: 1 / (1 + math.exp(-x)), m, v)
    exact = ua.nn.UASigmoid()(_gaussian(m, v)).mean.item()
    assert math.isclose(exact, truth, rel_tol=1e-9)
    for lam in (0.368, 3 / math.pi**2):
        approximate = ua.nn.UASigmoid("report", lam=lam)(_gaussian(m, v)).mean.item()
        assert 1e-5 < abs(approximate - truth) < 0.02
