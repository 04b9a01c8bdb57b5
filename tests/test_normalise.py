"""Normalisation of correlated tensors, statistics that run, digits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua
from uaprop.numerics import steady
from uaprop.rules import batch

from .cases import constant
from .test_correlated import correlated, one_source_each

DOUBLE = torch.float64
Call = Callable[[Any], Any]


def noisy(shape: tuple[int, ...], noise: float, seed: int = 0) -> ua.Gaussian:
    """Means of spread 1, deviations around ``noise``."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=generator, dtype=DOUBLE)
    var = noise**2 * (0.25 + 1.5 * torch.rand(shape, generator=generator, dtype=DOUBLE))
    return ua.Gaussian(mean, var)


def errors(y: ua.Gaussian, truth: ua.Gaussian) -> tuple[float, float]:
    """Relative errors of the deviations and errors of the means in deviations, root mean squares."""
    std = (y.std / truth.std - 1).square().mean().sqrt()
    mean = ((y.loc - truth.loc) / truth.std).square().mean().sqrt()
    return float(std.detach()), float(mean.detach())


# ------------------------------------------------------------------ independent elements

LAYERS: dict[str, Callable[[int], Call]] = {
    "layer_norm": lambda n: lambda x: F.layer_norm(x, (n,)),
    "rms_norm": lambda n: lambda x: F.rms_norm(x, (n,)),
    "normalize": lambda n: lambda x: F.normalize(x),
    "group_norm": lambda n: lambda x: F.group_norm(x, 2),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("count", "noise", "limit"), [(8, 0.3, 0.02), (8, 1.0, 0.04), (32, 3.0, 0.02)]
)
def test_independent_elements(name: str, count: int, noise: float, limit: float) -> None:
    elements = 2 * count if name == "group_norm" else count
    x, call = noisy((12, elements), noise), LAYERS[name](count)
    truth = ua.propagate(call, x, method="samples", samples=20_000)
    for y in (call(x), call(one_source_each(x))):
        std, mean = errors(y, truth)
        assert std < limit + 0.005
        assert mean < limit + 0.007


def test_squares_of_a_normalised_vector_add_up() -> None:
    """``Σ y² = n``, whatever the noise: means and variances have to share it."""
    for noise in (0.03, 0.3, 3.0):
        y = F.rms_norm(noisy((20, 16), noise), (16,), eps=0.0)
        total = (y.loc.square() + y.var).mean(-1)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0.02, atol=0)


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-5])
def test_little_noise_keeps_its_digits(noise: float) -> None:
    """Linear then; float32 follows, although the variance is a billionth of the mean's square."""
    x = noisy((4, 32), noise)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda t: F.layer_norm(t, (32,))))(x.loc)
    expected = (jacobian.square() @ x.var.unsqueeze(-1)).squeeze(-1).sqrt()
    for dtype in (torch.float64, torch.float32):
        y = F.layer_norm(ua.Gaussian(x.loc.to(dtype), x.var.to(dtype)), (32,))
        torch.testing.assert_close(y.std.double(), expected, rtol=max(noise, 1e-4), atol=0)


# ------------------------------------------------------------------ correlation


def weights(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=DOUBLE) / shape[0] ** 0.5


SQUARE, WIDE, NARROW, LAST = weights(16, 16), weights(16, 24), weights(16, 12), weights(24, 16)

MODELS: dict[str, Call] = {
    "linear": lambda x: F.layer_norm(x @ SQUARE, (16,)),
    "rms": lambda x: F.rms_norm(x @ SQUARE, (16,)),
    "twice": lambda x: F.layer_norm(F.relu(F.layer_norm(x @ WIDE, (24,))) @ LAST, (16,)),
    "residual": lambda x: x + F.layer_norm(x @ SQUARE, (16,)),
    "group": lambda x: F.group_norm(x @ SQUARE, 2),
    "direction": lambda x: F.normalize(x @ NARROW),
    "angle": lambda x: F.cosine_similarity(x @ NARROW, x[:, :12], 1).unsqueeze(1),
    "norm": lambda x: torch.linalg.vector_norm(x @ NARROW, dim=1, keepdim=True),
    "spread": lambda x: torch.std(x @ NARROW, dim=1, keepdim=True),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_correlated_elements(name: str, noise: float) -> None:
    x = noisy((4, 16), noise)
    truth = ua.propagate(MODELS[name], x, method="samples", samples=20_000)
    full = errors(ua.propagate(MODELS[name], x, method="full"), truth)
    assert max(full) < 0.06
    sketch = errors(ua.propagate(MODELS[name], x, method="sketch", probes=512), truth)
    assert max(sketch) < 0.09
    hybrid = errors(ua.propagate(MODELS[name], x, method="hybrid", samples=400), truth)
    assert max(hybrid) < 0.12


def test_noise_that_all_elements_share() -> None:
    """Three directions of noise for 16 elements: the normaliser is far from a sum of many."""
    x = correlated((4, 16), 3, scale=0.3)
    call = MODELS["linear"]
    truth = ua.propagate(call, x, method="samples", samples=20_000)
    for method in ("full", "sketch"):
        std, mean = errors(ua.propagate(call, x, method=method), truth)
        assert std < 0.15
        assert mean < 0.1


def test_a_level_and_a_scale_that_are_noisy_make_no_difference() -> None:
    """Layer normalisation takes off whatever is added to all elements."""
    mean = constant(2, 8)
    level = torch.ones(1, 2, 8, dtype=DOUBLE)
    y = F.layer_norm(ua.Gaussian.from_factors(mean, level), (8,))
    assert y.std.max() < 1e-7
    torch.testing.assert_close(y.loc, F.layer_norm(mean, (8,)))


# ------------------------------------------------------------------ statistics that run


def tracking(kind: str) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm1d(2).double()
    return nn.InstanceNorm1d(2, affine=True, track_running_stats=True).double()


@pytest.mark.parametrize("method", ["diagonal", "sketch", "full", "hybrid", "samples"])
@pytest.mark.parametrize("kind", ["batch", "instance"])
@pytest.mark.filterwarnings("ignore:.*training mode")
def test_propagate_leaves_running_statistics_alone(kind: str, method: str) -> None:
    model, x = tracking(kind), noisy((6, 2, 5), 0.8)
    ua.propagate(model, x, method=method)
    assert model.running_mean.eq(0).all()
    assert model.running_var.eq(1).all()
    assert model.num_batches_tracked == 0


@pytest.mark.parametrize("kind", ["batch", "instance"])
def test_running_statistics_move_once_towards_the_expected_ones(kind: str) -> None:
    """Where the user calls the model, as in training."""
    x = noisy((6, 2, 5), 0.8)
    plain = tracking(kind)
    sums = [torch.zeros(2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)]
    draws = x.sample(2000, generator=torch.Generator().manual_seed(0))
    for draw in draws:
        plain.running_mean.zero_()
        plain.running_var.fill_(1.0)
        plain(draw)
        sums = [sums[0] + plain.running_mean, sums[1] + plain.running_var]
    model = tracking(kind)
    model(x)
    torch.testing.assert_close(model.running_mean, sums[0] / len(draws), rtol=0.02, atol=0.02)
    torch.testing.assert_close(model.running_var, sums[1] / len(draws), rtol=0.02, atol=0.02)
    if kind == "batch":
        assert model.num_batches_tracked == 1


def test_in_training_batch_normalisation_answers_for_the_batch() -> None:
    model = nn.BatchNorm2d(3).double()
    x = noisy((4, 3, 2, 2), 0.5)
    y = ua.propagate(model, x, method="full")
    truth = ua.propagate(lambda x: F.batch_norm(x, None, None, training=True), x, method="samples")
    assert max(errors(y, truth)) < 0.05


# ------------------------------------------------------------------ what is refused, and edges


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda x: F.layer_norm(x[:, :2], (2,)), "sign"),
        (lambda x: F.rms_norm(x[:, :1], (1,)), "sign"),
        (lambda x: F.normalize(x, p=1), "order 1"),
        (lambda x: torch.linalg.vector_norm(x, 3), "order 3"),
        (lambda x: torch.linalg.vector_norm(x, 4), "three standard"),
        (lambda x: torch.linalg.norm(x, 2), "matrix norm"),
        (lambda x: torch.norm(x, "nuc"), "nuclear"),
        (lambda x: F.lp_pool1d(x, 3, 2), "three standard"),
        (lambda x: F.batch_norm(x, None, None), "running statistics"),
        (lambda x: F.cosine_similarity(x, x[:, :1], 1), "repeats"),
    ],
)
def test_what_has_no_answer_is_refused(call: Call, problem: str) -> None:
    with pytest.raises(ua.UnsupportedOperation, match=problem):
        call(noisy((3, 6), 0.5))


def test_padding_without_noise() -> None:
    mean = torch.zeros(2, 8)
    mean[1] = torch.arange(8.0)
    var = torch.zeros(2, 8)
    var[1] = 0.1
    x = ua.Gaussian(mean.requires_grad_(), var)
    for call in (lambda x: F.layer_norm(x, (8,)), lambda x: F.rms_norm(x, (8,)), F.normalize):
        y = call(x)
        assert torch.count_nonzero(y.loc[0]) == torch.count_nonzero(y.var[0]) == 0
        (gradient,) = torch.autograd.grad(y.loc.sum() + y.var.sum(), x.loc, retain_graph=True)
        assert torch.isfinite(gradient).all()


def test_a_single_element_is_normalised_to_nothing() -> None:
    y = F.layer_norm(ua.Gaussian(torch.ones(3, 1), 1.0), (1,))
    assert torch.count_nonzero(y.loc) == torch.count_nonzero(y.var) == 0


@pytest.mark.parametrize("layer", ["layer", "group", "batch", "instance"])
def test_random_weights(layer: str) -> None:
    x = noisy((3, 4, 6), 0.5)
    weight, bias = ua.Gaussian(torch.ones(4, dtype=DOUBLE), 0.1), torch.zeros(4, dtype=DOUBLE)
    last = ua.Gaussian(torch.ones(6, dtype=DOUBLE), 0.1)
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "layer": lambda w, b: F.layer_norm(x, (6,), None if w is None else last),
        "group": lambda w, b: F.group_norm(x, 2, w, b),
        "batch": lambda w, b: F.batch_norm(x, None, None, w, b, True),
        "instance": lambda w, b: F.instance_norm(x, None, None, w, b),
    }
    plain, scaled = calls[layer](None, None), calls[layer](weight, bias)
    torch.testing.assert_close(scaled.loc, plain.loc)
    torch.testing.assert_close(scaled.var, 1.1 * plain.var + 0.1 * plain.loc.square())


def test_methods_of_a_gaussian() -> None:
    x = noisy((3, 6), 0.2)
    torch.testing.assert_close(x.var(1).loc, torch.var(x, 1).loc)
    torch.testing.assert_close(x.std(dim=1, keepdim=True).var, torch.std(x, 1, keepdim=True).var)
    torch.testing.assert_close(x.norm(dim=1).loc, torch.linalg.vector_norm(x, dim=1).loc)
    both: tuple[Tensor, ...] = tuple(y.loc for y in torch.var_mean(x, 1, correction=0))
    torch.testing.assert_close(both[1], x.loc.mean(1))


def test_models_of_torch() -> None:
    """A transformer's and a style network's layers take a Gaussian as they are."""
    torch.manual_seed(0)
    norms = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8)).double()
    x = noisy((2, 5, 8), 0.3)
    assert norms(x).shape == (2, 5, 8)
    maps = nn.Sequential(
        nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LocalResponseNorm(2), nn.LPPool2d(2, 2)
    ).double()
    assert maps(noisy((1, 4, 4, 4), 0.3)).shape == (1, 4, 2, 2)


@pytest.mark.parametrize("case", ["even", "uneven", "an outlier"])
def test_statistics_of_many_elements_are_steady(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short formula against the long one; and not where a single element has a say."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(8, 3, 16, 16, generator=generator, dtype=DOUBLE) * 2 + 1
    var = torch.rand(mean.shape, generator=generator, dtype=DOUBLE) + 0.2
    if case == "uneven":
        var[..., 8:] *= 1e-4
    elif case == "an outlier":
        mean[0, :, 0, 0] = 40
    weight, bias = torch.rand(2, 3, generator=generator, dtype=DOUBLE)
    used: list[bool] = []
    short = batch.normalised

    def watched(*arguments: Any) -> Any:
        found = short(*arguments)
        used.append(found is not None)
        return found

    monkeypatch.setattr(batch, "normalised", watched)
    found = F.batch_norm(ua.Gaussian(mean, var), None, None, weight, bias, True)
    assert used == [case != "an outlier"]
    monkeypatch.setattr(batch, "_MANY", 10**9)
    truth = F.batch_norm(ua.Gaussian(mean, var), None, None, weight, bias, True)
    assert len(used) == 1
    torch.testing.assert_close(found.loc, truth.loc, rtol=0, atol=2e-3)
    # where the statistics' noise is nearly all there is, its correlation with the element's is left out
    rtol = 0.04 if case == "uneven" else 0.02
    torch.testing.assert_close(found.cov.var, truth.cov.var, rtol=rtol, atol=0)
    assert (found.cov.var / truth.cov.var - 1).abs().mean() < 0.3 * rtol


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed", "vectors"])
def test_gradients_through_steady_statistics(layout: str) -> None:
    """The closed form against autograd, by everything and twice."""
    generator = torch.Generator().manual_seed(0)
    shape = (600, 3) if layout == "vectors" else (8, 3, 16, 16)
    mean, var, *weights = torch.randn(4, *shape, generator=generator, dtype=DOUBLE)
    mean, var = 2 * mean + 1, var.abs() + 0.2
    if layout == "channels last":
        mean, var = (t.contiguous(memory_format=torch.channels_last) for t in (mean, var))
    elif layout == "transposed":
        mean, var = mean.mT.contiguous().mT, var
    scale, shift = torch.rand(2, 3, generator=generator, dtype=DOUBLE)
    given = [t.clone().requires_grad_() for t in (mean, var, scale, shift)]

    def formula(m: Tensor, v: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        dims, n = [0, *range(2, m.ndim)], m.numel() // 3
        factor, offset = (t.view(3, *[1] * (m.ndim - 2)) for t in (scale, shift))
        c = m - m.mean(dims, keepdim=True)
        level = v.mean(dims, keepdim=True)
        total = c.square().mean(dims, keepdim=True) + level * (1 - 1 / n) + 1e-5
        noise = (4 * c.square() * v + 2 * v.square()).mean(dims, keepdim=True)
        ratio = (noise / (4 * n * total.square())).detach()
        slope = (2 * (c * v).mean(dims, keepdim=True) / (n * total)).detach()
        factor = factor / total.sqrt()
        rest = level / n + c * slope + c.square() * ratio
        return c * factor + offset, (v + rest) * factor.square()

    def short(*given: Tensor) -> Any:
        with torch.no_grad():
            known = steady.statistics(*given[:2])
        return steady.normalised(given[0], given[1], known, given[2], given[3], 1e-5)

    def derivatives(function: Callable[..., Any]) -> list[Tensor]:
        y = function(*given)
        loss = sum((w * t).sum() for w, t in zip(weights, y, strict=True))
        first = torch.autograd.grad(loss, given, create_graph=True)
        second = torch.autograd.grad(sum(t.square().sum() for t in first[:3]), given[:3])
        return [*y, *first, *second, *torch.autograd.grad(function(*given), given, weights)]

    for found, expected in zip(derivatives(short), derivatives(formula), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    if layout == "channels last":
        assert all(t.is_contiguous(memory_format=torch.channels_last) for t in short(*given))


def test_running_statistics_are_those_of_a_small_batch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many elements they come from the statistics that normalise."""
    x = noisy((8, 3, 16, 16), 0.5)
    found = []
    for many in (1, 10**9):
        monkeypatch.setattr(batch, "_MANY", many)
        norm = nn.BatchNorm2d(3).double()
        norm(x)
        found.append(norm.state_dict())
    torch.testing.assert_close(found[0], found[1])
