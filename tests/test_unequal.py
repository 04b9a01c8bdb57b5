"""Every rule on elements whose variances differ by orders of magnitude, and grow with the mean.

A term that is wrong but vanishes for equal variances, or for variances unrelated to the means, shows here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import uaprop as ua

from .cases import CASES, Case
from .test_correlated import matrix, one_source_each

DOUBLE = torch.float64
Call = Callable[[Any], Any]

# Conversions to a dtype in whose range small variances are not.
SHORT = {"half", "bfloat16"}


def unequal(shape: tuple[int, ...], smallest: float, largest: float) -> ua.Gaussian:
    """The higher an element's mean, the larger its standard deviation."""
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(shape, generator=generator, dtype=DOUBLE)
    rank = mean.reshape(-1).argsort().argsort().view(shape) / max(1, mean.numel() - 1)
    return ua.Gaussian(mean, std=smallest * (largest / smallest) ** rank)


def shared(x: ua.Gaussian) -> ua.Gaussian:
    """The same means and about the same variances, from three sources of noise that all elements share."""
    generator = torch.Generator().manual_seed(11)
    factors = torch.randn((3, *x.shape), generator=generator, dtype=DOUBLE) * x.std / 3**0.5
    return ua.Gaussian.from_factors(x.loc, factors)


def dense(call: Call) -> Call:
    return lambda x: ua.propagate(call, x, method="full")


def first_order(case: Case, x: ua.Gaussian) -> Tensor:
    """Variances ``diag(J Σ Jᵀ)``; the matrix of a linear map is what it makes of unit vectors."""
    if case.kind == "linear":
        rows = matrix(case.call, case.shape)
    else:
        jacobian = torch.autograd.functional.jacobian(lambda t: case.call(t).reshape(-1), x.loc)
        rows = jacobian.reshape(len(jacobian), -1)
    return ((rows @ x.reshape(-1).covariance()) * rows).sum(1)


smooth = pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.kind != "noise" and c.rule not in SHORT],
    ids=lambda case: f"{case.name}-{case.kind}",
)


@smooth
def test_little_noise_is_carried_by_the_derivative(case: Case) -> None:
    x = unequal(case.shape, 1e-6, 1e-4)
    few = shared(x)
    runs: list[tuple[str, ua.Gaussian, Call]] = [
        ("diagonal", x, case.call),
        ("factors", one_source_each(x), case.call),
        ("shared factors", few, case.call),
        ("full", x, dense(case.call)),
        ("full of shared factors", few, dense(case.call)),
    ]
    plain = case.call(x.loc.clone())
    for name, given, call in runs:
        expected = first_order(case, given).view(plain.shape).sqrt()
        y = call(given.clone())
        torch.testing.assert_close(
            y.std, expected, rtol=1e-3, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}"
        )
        assert bool(((y.loc - plain).abs() <= 0.01 * expected + 1e-12).all()), name


noisy = pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.kind != "linear"],
    ids=lambda case: f"{case.name}-{case.kind}",
)

# Of approximations that are made for variances of one size: allowed relative error of the std.
ROUGH = {
    "softmax": 0.05, "aten_softmax": 0.05, "torch_softmax": 0.12, "log_softmax-long": 0.1,
    "power_by_its_making-inverse": 0.12, "lstm": 0.15, "lstm_cell": 0.15,
}  # fmt: skip


def sampled(call: Call, x: ua.Gaussian, count: int) -> Tensor:
    """The operation on every sample, together where torch knows how to."""
    samples = x.sample(count, generator=torch.Generator().manual_seed(5))
    try:
        return torch.vmap(call, randomness="different", chunk_size=4000)(samples)
    except RuntimeError:
        return torch.stack([call(sample) for sample in samples[:4000]])


@noisy
def test_much_noise_agrees_with_monte_carlo(case: Case) -> None:
    x = unequal(case.shape, 0.03, 1.0)
    y = case.call(x)
    values = sampled(case.call, x, 20_000)
    mean, std = values.mean(0), values.std(0)
    typical = std.square().mean().sqrt()  # an element that hardly ever varies has no sample std
    kurtosis = (values - mean).pow(4).mean(0) / std.clamp_min(1e-12).pow(4)
    error = 5 * ((kurtosis - 1).clamp_min(0) / (4 * len(values))).sqrt()
    limit = ROUGH.get(case.name, case.tolerance)
    assert bool(((y.std - std).abs() <= (limit + error) * std + 2e-3 * typical).all())
    allowed = (limit + 5 * len(values) ** -0.5) * std + 2e-3 * typical
    assert bool(((y.loc - mean).abs() <= allowed).all())


# ------------------------------------------------------------------ statistics and normalisation


def quadratic_form(matrix: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``xᵀ A x``, exactly: ``tr(AΣ) + mᵀAm`` and ``2 tr(AΣAΣ) + 4 mᵀAΣAm``."""
    spread = matrix @ torch.diag(var)
    first = spread.trace() + mean @ matrix @ mean
    return first, 2 * (spread @ spread).trace() + 4 * mean @ spread @ matrix @ mean


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("method", ["diagonal", "factors", "full"])
def test_the_variance_of_a_row_is_a_quadratic_form(method: str, correction: int) -> None:
    mean, var = (
        torch.tensor([0.0, 0.0, 0.0, 50.0]).double(),
        torch.tensor([1.0, 1, 1, 100]).double(),
    )
    centring = torch.eye(4, dtype=DOUBLE) - 0.25
    expected = quadratic_form(centring / (4 - correction), mean, var)
    x = ua.Gaussian(mean.unsqueeze(0), var.unsqueeze(0))

    def call(x: Any) -> Any:
        return torch.var(x, 1, correction=correction)

    y = {"diagonal": call, "full": dense(call), "factors": lambda x: call(one_source_each(x))}[
        method
    ](x)
    torch.testing.assert_close(y.loc[0], expected[0])
    low = 1e-4 if method == "factors" else 1e-9
    torch.testing.assert_close(y.var[0], expected[1], rtol=low, atol=0)
    if correction:
        assert float(y.var[0]) == pytest.approx(63_967, rel=1e-4)


LAYERS: dict[str, Call] = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x, 1),
    "instance_norm": lambda x: F.instance_norm(x.unsqueeze(1)).squeeze(1),
    "batch_norm": lambda x: F.batch_norm(x.mT, None, None, training=True).mT,
    "normalize": lambda x: F.normalize(x, dim=-1),
    "std": lambda x: torch.std(x, -1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "cosine_similarity": lambda x: F.cosine_similarity(x[..., :3, :], x[..., 3:, :], -1),
    "local_response_norm": lambda x: F.local_response_norm(x.unsqueeze(-1), 3, 1.0, 0.75, 0.1),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("count", [4, 8, 32])
@pytest.mark.parametrize("largest", [0.3, 3.0, 30.0])
def test_normalisation_by_a_few_noisy_elements(name: str, count: int, largest: float) -> None:
    """The normaliser then varies by as much as its mean, and no formula for a steady one holds."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, count, generator=generator, dtype=DOUBLE)
    std = largest * 10 ** (-2 * torch.rand(6, count, generator=generator, dtype=DOUBLE))
    x = ua.Gaussian(mean, std=std)
    y = LAYERS[name](x)
    values = torch.vmap(LAYERS[name])(x.sample(20_000, generator=generator))
    truth = values.std(0)
    assert bool(((y.std / truth - 1).abs() < 0.1).all())
    assert (y.std / truth - 1).square().mean().sqrt() < 0.03
    assert bool(((y.loc - values.mean(0)).abs() < 0.05 * truth).all())


@pytest.mark.parametrize("count", [3, 4, 16])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_what_is_normalised_stays_within_bounds(count: int, dtype: torch.dtype) -> None:
    """A normalised element has a square of at most ``n``, a cosine one of at most 1."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 200, count, generator=generator, dtype=dtype)
    var = 10 ** (8 * torch.rand(mean.shape, generator=generator, dtype=dtype) - 5)
    x, y = (ua.Gaussian(m, v) for m, v in zip(mean, var, strict=True))
    limits = {"layer_norm": count - 1, "rms_norm": count, "normalize": 1}
    found = [(LAYERS[name](x), limit) for name, limit in limits.items()]
    for other in (y, y.loc):
        found.append((F.cosine_similarity(x, other), 1))
    for value, limit in found:
        assert bool((value.var >= 0).all())
        assert bool((value.loc.square() + value.var <= limit * (1 + 1e-5)).all())


@pytest.mark.parametrize("method", ["diagonal", "full"])
@pytest.mark.parametrize("sources", [1, 2, 3])
@pytest.mark.parametrize("count", [3, 4])
def test_what_is_normalised_stays_within_bounds_if_elements_share_noise(
    count: int, sources: int, method: str
) -> None:
    """A few elements and fewer sources: the formula for a steady normaliser is used all the same."""
    generator = torch.Generator().manual_seed(count)
    mean = torch.randn(200, count, generator=generator)
    scale = 10 ** (3 * torch.rand(200, 1, generator=generator) - 2)
    factors = torch.randn(sources, 200, count, generator=generator) * scale
    x = ua.Gaussian.from_factors(mean, factors)
    for name, limit in {"layer_norm": count, "rms_norm": count, "normalize": 1}.items():
        call = LAYERS[name]
        y = dense(call)(x) if method == "full" else call(x)
        assert bool((y.var >= 0).all())
        assert bool((y.loc.square() + y.var <= limit * (1 + 1e-5)).all())


def test_bounds_hold_to_the_last_digit() -> None:
    """``acos`` makes NaN of a cosine above 1, by however little."""
    generator = torch.Generator().manual_seed(0)
    mean = 10 ** (4 * torch.rand(2000, 4, generator=generator))
    for noise in (1e-6, 1e-3):
        x = ua.Gaussian(mean, std=noise * mean)
        for other in (2 * mean, ua.Gaussian(2 * mean, std=noise * mean)):
            found = F.cosine_similarity(x, other)
            assert bool(torch.acos(found.loc).isfinite().all())
            assert bool((found.var >= 0).all())
    mean[:, 1:] = 0.0
    x = ua.Gaussian(mean, std=torch.rand(mean.shape, generator=generator))
    for call, limit in ((lambda x: F.rms_norm(x, (4,)), 2), (F.normalize, 1)):
        found = call(x)
        assert bool((found.loc.abs() <= limit).all())
        assert bool((found.var <= limit**2 - found.loc.square()).all())


@pytest.mark.parametrize("scale", [1e-16, 1e-12, 1e12, 1e16])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "std", "vector_norm", "cosine"])
def test_noise_around_zero_has_a_size_too(name: str, scale: float) -> None:
    """Of whatever order of magnitude, although float32 does not hold a square of the variances."""
    calls: dict[str, tuple[Call, int]] = {
        "layer_norm": (lambda x: F.layer_norm(x, (4,), eps=0.0), 0),
        "rms_norm": (lambda x: F.rms_norm(x, (4,), eps=0.0), 0),
        "std": (lambda x: torch.std(x, 1), 1),
        "vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1), 1),
        "cosine": (lambda x: F.cosine_similarity(x[:, :2], x[:, 2:], eps=0.0), 0),
    }
    call, degree = calls[name]
    mean, std = torch.zeros(1, 4), torch.tensor([[1.0, 2.0, 0.5, 3.0]])
    wanted, found = call(ua.Gaussian(mean, std=std)), call(ua.Gaussian(mean, std=scale * std))
    torch.testing.assert_close(found.loc / scale**degree, wanted.loc + 0, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.std / scale**degree, wanted.std + 0, rtol=1e-4, atol=0)


def test_statistics_of_a_large_batch_that_half_of_it_makes_noisy() -> None:
    """Elements without noise get that of the channel's mean and spread, which are correlated."""
    generator = torch.Generator().manual_seed(0)
    mean = 0.1 * torch.randn(2048, 2, generator=generator, dtype=DOUBLE)
    mean[:1024] += 1
    mean[1024:] -= 1
    x = ua.Gaussian(mean, torch.where(mean > 0, 1.0, 1e-6))

    def call(x: Any) -> Any:
        return F.batch_norm(x, None, None, training=True)

    y = call(x)
    samples = x.sample(1500, generator=generator)
    ratio = y.std / torch.stack([call(sample) for sample in samples]).std(0)
    quiet, loud = ratio[1024:], ratio[:1024]
    assert abs(float(quiet.mean()) - 1) < 0.05
    assert abs(float(loud.mean()) - 1) < 0.02


def test_the_cosine_of_single_elements_is_a_product_of_signs() -> None:
    x = ua.Gaussian(torch.tensor([[0.3], [-1.0]], dtype=DOUBLE), torch.tensor([[1.0], [4.0]]))
    y = ua.Gaussian(torch.tensor([[2.0], [0.1]], dtype=DOUBLE), torch.tensor([[2.0], [0.01]]))
    found = F.cosine_similarity(x, y)
    signs = [torch.erf(t.loc / (2 * t.var).sqrt()).squeeze(1) for t in (x, y)]
    torch.testing.assert_close(found.loc, signs[0] * signs[1], rtol=1e-5, atol=0)
    torch.testing.assert_close(found.var, 1 - (signs[0] * signs[1]).square(), rtol=1e-5, atol=0)


def test_an_element_that_does_not_respond_to_first_order_varies_to_second() -> None:
    """The largest of three elements, the others being equal, is as large as it can be."""
    mean = torch.tensor([[2.0, -1.0, -1.0]], dtype=torch.float64)
    std = torch.tensor([[0.05, 0.03, 0.06]], dtype=torch.float64)
    noise = torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0)).double()
    sampled = F.layer_norm(mean + std * noise, (3,)).std(0, keepdim=True)
    found = F.layer_norm(ua.Gaussian(mean, std=std), (3,)).std
    torch.testing.assert_close(found, sampled, rtol=0.05, atol=0)
