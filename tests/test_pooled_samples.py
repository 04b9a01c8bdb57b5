"""Few samples know standard deviations better if outputs that are alike share them (``moderated=True``)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.methods.accumulate import Accumulator
from uaprop.methods.pooling import Moderated, moderated, squared_correlations
from uaprop.provenance import Provenance

INPUTS, OUTPUTS = 40, 10


def linear_case(
    batch: int, outputs: int = OUTPUTS, spread: float = 0.4
) -> tuple[nn.Module, ua.Gaussian, Tensor]:
    """A linear layer, its input, and the exact deviations; they differ by about ``exp(spread/2)``."""
    generator = torch.Generator().manual_seed(outputs + batch)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    model = nn.Linear(INPUTS, outputs).double().requires_grad_(False)
    model.weight.copy_(normal(outputs, INPUTS) * torch.exp(spread * normal(outputs, 1) / 2))
    std = 0.3 * torch.exp(spread * normal(batch, INPUTS) / 2)
    exact = (std.square() @ model.weight.square().T).sqrt()
    return model, ua.Gaussian(normal(batch, INPUTS), std=std), exact


def sampled(model: Any, x: ua.Gaussian, samples: int, seed: int = 0, **options: Any) -> Any:
    return ua.propagate(model, x, method="samples", samples=samples, seed=seed, **options)


def log_error(answers: list[ua.Gaussian], exact: Tensor) -> float:
    return float(torch.stack([(y.std / exact).log().abs().mean() for y in answers]).mean())


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(
    ("samples", "batch", "most"),
    [(2, 8, 0.6), (3, 8, 0.7), (4, 1, 0.9), (4, 8, 0.7), (8, 1, 0.9), (8, 8, 0.9)],
)
def test_few_draws_know_more(samples: int, batch: int, most: float, centred: bool) -> None:
    model, x, exact = linear_case(batch)
    plain, steady = (
        [sampled(model, x, samples, s, moderated=m, centred=centred) for s in range(60)]
        for m in (False, True)
    )
    assert log_error(steady, exact) < most * log_error(plain, exact)


def test_many_draws_change_nothing() -> None:
    model, x, _ = linear_case(6)
    plain, steady = (sampled(model, x, 4000, moderated=m) for m in (False, True))
    torch.testing.assert_close(steady.var, plain.var, rtol=0.02, atol=0)  # chance itself is 0.022
    torch.testing.assert_close(steady.standard_error, plain.standard_error, rtol=0.2, atol=0)


def test_outputs_that_are_not_alike_change_nothing() -> None:
    model, x, _ = linear_case(6)
    scale = 10.0 ** torch.arange(-6, 4, dtype=torch.float64)
    scale = torch.stack([10.0**k * scale.roll(k) for k in range(6)])
    plain, steady = (sampled(lambda t: model(t) * scale, x, 8, moderated=m) for m in (False, True))
    torch.testing.assert_close(steady.var, plain.var, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("batch", "outputs"), [(1, 1), (3, 1), (1, 3), (2, 2)])
def test_too_few_change_nothing(batch: int, outputs: int) -> None:
    model, x, _ = linear_case(batch, outputs)
    plain, steady = (sampled(model, x, 5, moderated=m) for m in (False, True))
    assert torch.equal(steady.var, plain.var)
    assert torch.equal(steady.covariance(), plain.covariance())


def test_what_does_not_vary_stays() -> None:
    model, x, exact = linear_case(6)
    model.weight[2] = 0
    x = ua.Gaussian(x.mean, var=x.var * torch.tensor([1.0, 0, 1, 1, 1, 1])[:, None])
    y = sampled(model, x, 5, moderated=True)
    assert (y.var[1] == 0).all()
    assert (y.var[:, 2] == 0).all()
    varies = exact > 0
    varies[1] = varies[:, 2] = False
    assert (y.var[varies] > 0).all()
    assert y.standard_error.std.isfinite().all()
    assert (y.standard_error.std[~varies] < 1e-12).all()
    others, rest = [k for k in range(OUTPUTS) if k != 2], [0, 2, 3, 4, 5]
    alone = sampled(lambda t: model(t)[:, others], x[rest], 5, moderated=True)
    torch.testing.assert_close(y.var[rest][:, others], alone.var)


def test_correlations_stay() -> None:
    model, x, _ = linear_case(6)
    plain, steady = (sampled(model, x, 8, moderated=m) for m in (False, True))
    covariance = steady.covariance()
    torch.testing.assert_close(covariance.diagonal(dim1=1, dim2=2), steady.var)
    before = plain.covariance() / (plain.std.unsqueeze(-1) * plain.std.unsqueeze(-2))
    after = covariance / (steady.std.unsqueeze(-1) * steady.std.unsqueeze(-2))
    torch.testing.assert_close(after, before)
    assert torch.equal(steady.mean, plain.mean)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("samples", [8, 32])
def test_standard_errors_are_honest(samples: int, batch: int) -> None:
    model, x, exact = linear_case(batch)
    z = []
    for seed in range(100):
        y = sampled(model, x, samples, seed, moderated=True)
        z.append((y.std - exact) / y.standard_error.std)
    assert 0.75 < float(torch.stack(z).square().mean().sqrt()) < 1.35


def test_two_draws_do_not_claim_to_know_their_deviation() -> None:
    """They are equally far from their mean, so that their squares have no spread to tell it by."""
    model, x, _ = linear_case(3)
    y = sampled(model, x, 2)
    chance = float(torch.polygamma(1, torch.tensor(0.5, dtype=torch.float64))) / 4
    torch.testing.assert_close(y.standard_error.std, y.std.as_subclass(Tensor) * chance**0.5)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("samples", [2, 3, 4])
def test_standard_errors_of_two_to_four_samples_are_honest(samples: int, batch: int) -> None:
    """Of the logarithm: what so few samples know of a standard deviation is far from normal."""
    model, x, exact = linear_case(batch)
    z = []
    for seed in range(200):
        y = sampled(model, x, samples, seed, moderated=True)
        z.append((y.std / exact).log() * y.std / y.standard_error.std)
    assert 0.6 < float(torch.stack(z).square().mean().sqrt()) < 1.35


@pytest.mark.parametrize("weights", [False, True])
def test_batch_elements_that_share_noise_are_kept_apart(weights: bool) -> None:
    """One source for a whole batch is no more draws for being seen in many batch elements."""
    model, x, _ = linear_case(20)
    if weights:
        given = (ua.Gaussian(model.weight, std=0.1), x.loc)
        exact = 0.1 * x.loc.norm(dim=1, keepdim=True).expand(-1, OUTPUTS)
        network: Any = lambda weight, t: t @ weight.T  # noqa: E731
    else:
        factors = 0.1 * torch.randn(
            1, INPUTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        given = ua.Gaussian.from_factors(x.loc, factors.expand(20, -1).unsqueeze(0))
        exact = model(factors).sub(model.bias).abs().expand(20, -1)
        network = model
    z = []
    for seed in range(60):
        y = sampled(network, given, 8, seed, moderated=True)
        z.append((y.std - exact) / y.standard_error.std)
    assert 0.7 < float(torch.stack(z).square().mean().sqrt()) < 1.6
    alone = sampled(lambda *a: network(*a)[3], given, 8, moderated=True)
    together = sampled(network, given, 8, moderated=True)
    torch.testing.assert_close(together.var[3], alone.var)


def test_pictures_and_vectors_keep_their_shapes() -> None:
    model, x, _ = linear_case(5, 12)
    pictures = sampled(lambda t: model(t).unflatten(1, (3, 4)), x, 5, moderated=True)
    flat = sampled(model, x, 5, moderated=True)
    assert pictures.shape == (5, 3, 4)
    torch.testing.assert_close(pictures.var.flatten(1), flat.var)
    vector = sampled(lambda t: model(t)[0], x, 5, moderated=True)
    assert vector.shape == (12,)
    assert vector.covariance().shape == (12, 12)
    assert not torch.equal(vector.var, sampled(lambda t: model(t)[0], x, 5).var)


def test_draws_that_cannot_be_moderated() -> None:
    model, x, _ = linear_case(2)
    with pytest.raises(ValueError, match="moderated=True needs draws that are independent"):
        sampled(model, x, 8, moderated=True, antithetic=True)


# ------------------------------------------------------------------ the formula


def wishart(correlation: float, batch: int, outputs: int, freedom: int, seed: int) -> Tensor:
    """Covariances estimated from normal outputs of variance one, all correlated alike."""
    generator = torch.Generator().manual_seed(seed)
    shape = (freedom, batch, outputs)
    own = torch.randn(shape, generator=generator, dtype=torch.float64)
    common = torch.randn((*shape[:2], 1), generator=generator, dtype=torch.float64)
    draws = (1 - correlation) ** 0.5 * own + correlation**0.5 * common
    return torch.einsum("sbk,sbl->bkl", draws, draws) / freedom


def steadied(covariance: Tensor, freedom: int) -> Moderated:
    var = covariance.diagonal(dim1=1, dim2=2)
    return moderated(var, squared_correlations(covariance), freedom)


@pytest.mark.parametrize("samples", [6, 40])  # fewer draws than outputs, and more
@pytest.mark.parametrize("vector", [False, True])
def test_correlations_of_draws_are_those_of_their_covariance(samples: int, vector: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    shape = (samples, 20) if vector else (samples, 4, 20)
    draws = torch.randn(shape, generator=generator, dtype=torch.float64).cumsum(-1)
    draws[..., 7] = 1.0  # one that does not vary
    total = Accumulator()
    total.add(draws)
    assert (total.products is None) == (samples < 20)
    mean = total.moments()[0]
    found = total._squared_correlations(mean, 1.0)
    dense = total._covariance(mean, 1.0)
    wanted = squared_correlations(dense if dense.ndim == 3 else dense.unsqueeze(0))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("samples", [6, 40])
def test_an_output_that_is_no_number_harms_no_other(samples: int) -> None:
    generator = torch.Generator().manual_seed(4)
    draws = torch.randn((samples, 4, 20), generator=generator, dtype=torch.float64)
    whole, broken = Accumulator(), Accumulator()
    whole.add(draws[..., 1:])
    broken.add(torch.cat([draws[..., :1] / 0, draws[..., 1:]], -1))
    told = Provenance("samples", {})
    wanted, found = (total.result(told, moderate=True) for total in (whole, broken))
    torch.testing.assert_close(found.var[:, 1:].as_subclass(Tensor), wanted.var.as_subclass(Tensor))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("freedom", [4, 15])
def test_equal_variances_are_found_to_be_equal(correlation: float, freedom: int) -> None:
    """All that differs is chance, so nearly all of it goes, and what is left is as predicted."""
    left, before, own, predicted = [], [], [], []
    for seed in range(60):
        covariance = wishart(correlation, 12, 10, freedom, seed)
        var = covariance.diagonal(dim1=1, dim2=2)
        steady = steadied(covariance, freedom)
        left.append((var.log() + 2 * steady.scale.log()).square().mean())
        before.append(var.log().square().mean())
        still, error = steady.left()
        own.append(still)
        predicted.append(error)
    part = float(torch.stack(left).mean() / torch.stack(before).mean())
    # not below what no method can undo: the noise of an average over 10 correlated outputs
    shared = correlation**2 + (1 - correlation**2) / 10
    assert part < shared + 0.15
    assert part < 2.0 * float(torch.stack(predicted).mean()) + 0.02
    assert float(torch.stack(own).mean()) < shared + 0.1


def test_known_terms_are_kept_by_their_share() -> None:
    """Against the best linear prediction with the true components, which the method does not know."""
    batch, outputs, freedom = 30, 20, 6
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    chance = float(torch.polygamma(1, half))
    bias = float(torch.digamma(half) - half.log())
    ratio, plain = [], []
    for seed in range(20):
        generator = torch.Generator().manual_seed(900 + seed)
        terms = [
            0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((batch, 1), (1, outputs), (batch, outputs))
        ]
        truth = sum(terms)
        std = torch.exp(truth / 2)
        estimate = wishart(0.0, batch, outputs, freedom, seed)
        estimate = estimate * std.unsqueeze(-1) * std.unsqueeze(-2)
        logs = estimate.diagonal(dim1=1, dim2=2).log() - bias
        average = logs.mean(1, keepdim=True)  # of a batch element: it learns nothing from others
        best = average + (logs - average) * 0.5 / (0.5 + chance)
        steady = steadied(estimate, freedom)
        found = estimate.diagonal(dim1=1, dim2=2).log() + 2 * steady.scale.log()
        ratio.append((found - truth).square().mean() / (best - truth).square().mean())
        plain.append((logs - truth).square().mean() / (best - truth).square().mean())
    assert float(torch.stack(ratio).mean()) < 1.15
    assert float(torch.stack(plain).mean()) > 1.3
