"""Quasi-random samples (``qmc=True``): evenly spread, unbiased, and honest about their error."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

import uaprop as ua
from uaprop.covariance import Diagonal
from uaprop.numerics.quasi_random import MOST_SOURCES, Replicates, ScrambledNets

DOUBLE = torch.float64


def quasi(model: Any, x: Any, samples: int = 64, seed: int = 0, **options: Any) -> Any:
    return ua.propagate(model, x, "samples", samples=samples, seed=seed, qmc=True, **options)


def rms(values: Any) -> float:
    if not isinstance(values, Tensor):
        values = torch.stack(list(values))
    return float(values.detach().square().mean().sqrt())


def seen(x: Any, samples: int = 64, seed: int = 0, **options: Any) -> list[Tensor]:
    """The samples of several inputs that a model is run on, ``(samples, …)`` each."""
    inputs = x if isinstance(x, tuple) else (x,)
    runs: list[tuple[Tensor, ...]] = []

    def model(*values: Tensor) -> Tensor:
        runs.append(tuple(value.clone() for value in values))
        return values[0].flatten().sum()  # one number for all: no batch, so one sample at a time

    quasi(model, inputs, samples, seed, **options)
    samples_alone = runs[1 : samples + 1]  # the first is at the mean
    return [torch.stack(each) for each in zip(*samples_alone, strict=True)]


def cells(normal: Tensor, count: int) -> Tensor:
    """Which of so many equally likely cells each is in."""
    uniform = torch.special.ndtr(normal.double())
    return (uniform * count).long().clamp(0, count - 1)


# ------------------------------------------------------------------ how the points lie


@pytest.mark.parametrize(("samples", "replicates"), [(16, 4), (64, 4), (512, 4), (1024, 8)])
def test_every_source_has_a_sample_in_every_cell(samples: int, replicates: int) -> None:
    """Each replicate's points have one coordinate in each cell of width 1/points, in every dimension."""
    (values,) = seen(ua.Gaussian(torch.zeros(7, dtype=DOUBLE), 1.0), samples)
    points = samples // replicates
    found = cells(values, points).view(replicates, points, 7)
    every = torch.arange(points).view(1, -1, 1).expand_as(found)
    assert torch.equal(found.sort(1).values, every)
    assert not torch.equal(found[0], found[1])


def in_every_box(a: Tensor, b: Tensor, points: int) -> bool:
    """Whether each box of area 1/points has one point: a net in two dimensions."""
    digits = points.bit_length() - 1
    for first in range(digits + 1):
        box = cells(a, 2**first) * 2 ** (digits - first) + cells(b, 2 ** (digits - first))
        if not bool((box.view(-1, points).sort(1).values == torch.arange(points)).all()):
            return False
    return True


def test_two_sources_are_a_net() -> None:
    (values,) = seen(ua.Gaussian(torch.zeros(2, dtype=DOUBLE), 1.0), 256)
    assert in_every_box(values[:, 0], values[:, 1], 64)


def test_two_inputs_are_a_net_together() -> None:
    """They have different dimensions of one sequence. Two sequences would leave boxes empty."""
    x, y = (ua.Gaussian(torch.zeros(1, dtype=DOUBLE), 1.0) for _ in range(2))
    a, b = seen((x, y), 256)
    assert in_every_box(a[:, 0], b[:, 0], 64)


def test_factors_and_elements_are_a_net_together() -> None:
    """Also with the factors second, and in every item of a batch."""
    own = ua.Gaussian(torch.zeros(3, 1, dtype=DOUBLE), 1.0)
    factors = torch.ones(1, 3, 1, dtype=DOUBLE)
    shared = ua.Gaussian.from_factors(torch.zeros(3, 1, dtype=DOUBLE), factors)
    nets = ScrambledNets(Replicates(256), 0, items=True, keys=None)
    numbers = [nets.numbers(), nets.numbers()]
    for x, each in zip((own, shared), numbers, strict=True):
        x.cov.deviations(0, each)
    nets.allot()
    a, b = (x.cov.deviations(256, each) for x, each in zip((own, shared), numbers, strict=True))
    assert nets.dimensions == 2
    for item in range(3):
        assert in_every_box(a[:, item, 0], b[:, item, 0], 64)


def test_what_has_no_variance_has_no_dimension() -> None:
    var = torch.zeros(30_000, dtype=DOUBLE)
    var[[7, 20_000]] = 1.0
    (values,) = seen(ua.Gaussian(torch.zeros_like(var), var), 256)
    assert in_every_box(values[:, 20_000], values[:, 7], 64)
    assert bool((values[:, var == 0] == 0).all())


def test_the_largest_have_the_first_dimensions() -> None:
    """The first two of twenty dimensions are a net, and hardly any other pair is."""
    std = torch.linspace(0.1, 1, 20, dtype=DOUBLE)[torch.randperm(20)]
    (values,) = seen(ua.Gaussian(torch.zeros(20, dtype=DOUBLE), std=std), 256)
    first, second = std.argsort(descending=True)[:2].tolist()
    assert in_every_box(values[:, first] / std[first], values[:, second] / std[second], 64)


def test_factors_have_a_dimension_each_however_many_elements_there_are() -> None:
    factors = torch.randn(2, 40_000, dtype=DOUBLE)
    (values,) = seen(ua.Gaussian.from_factors(torch.zeros(40_000, dtype=DOUBLE), factors), 256)
    sources = torch.linalg.lstsq(factors.T, values.T).solution.T
    torch.testing.assert_close(sources @ factors, values)
    assert in_every_box(sources[:, 0], sources[:, 1], 64)


def test_the_principal_axes_of_a_covariance_have_the_first_dimensions() -> None:
    axes = torch.linalg.qr(torch.randn(12, 12, dtype=DOUBLE))[0]
    var = torch.tensor([9.0, 4.0, *[0.01] * 10], dtype=DOUBLE)
    dense = (axes * var) @ axes.T
    (values,) = seen(
        ua.Gaussian.from_dense(torch.zeros(12, dtype=DOUBLE), (dense + dense.T) / 2), 256
    )
    along = values @ axes / var.sqrt()
    assert in_every_box(along[:, 0], along[:, 1], 64)


def test_scramblings_are_independent_and_uniform() -> None:
    """Two points of a replicate and points of two replicates: the first are never in the same half."""
    nets = [ScrambledNets(Replicates(64), seed, False, None) for seed in range(400)]
    halves = []
    for net in nets:
        numbers = net.numbers()
        numbers.normal(0, torch.ones(3))
        net.allot()
        halves.append(numbers.normal(64, torch.ones(3, dtype=DOUBLE)) > 0)
    found = torch.stack(halves).double()  # (seeds, samples, sources)
    assert bool((found[:, 0] != found[:, 1]).all())
    assert float((found.mean(0) - 0.5).abs().max()) < 4.5 * 0.5 / 20
    signs = 2 * found - 1
    across = (signs[:, 0] * signs[:, 16]).mean(0)  # of two replicates
    between = (signs[:, 5, :1] * signs[:, 5, 1:]).mean(0)  # of two sources
    assert float(torch.cat([across, between]).abs().max()) < 4.5 / 20


def test_numbers_are_the_same_however_many_are_taken_at_a_time() -> None:
    cov = Diagonal(torch.rand(5, 3, generator=torch.Generator().manual_seed(0)) + 0.1)
    for items, keys in (
        (False, None),
        (True, None),
        (True, [3, 1, 4, 1, 5]),
        (False, [3, 1, 4, 2, 5]),
    ):
        found = []
        for sizes in ([96], [1] * 96, [7, 30, 50, 9]):
            nets = ScrambledNets(Replicates(96), 5, items, keys)
            numbers = nets.numbers()
            cov.deviations(0, numbers)
            nets.allot()
            found.append(torch.cat([cov.deviations(size, numbers) for size in sizes]))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


# ------------------------------------------------------------------ the estimates


def bent(t: Tensor) -> Tensor:
    """Three functions of standard normal noise whose moments are known."""
    return torch.stack([t.exp().prod(-1), t.square().sum(-1), t[..., 0] * t[..., 1]], -1)


@pytest.mark.parametrize("samples", [16, 24, 1024])
def test_estimates_are_unbiased(samples: int) -> None:
    x = ua.Gaussian(torch.zeros(1, 2, dtype=DOUBLE), 0.25)
    v = 0.25
    mean = torch.tensor([math.exp(v), 2 * v, 0.0], dtype=DOUBLE)
    var = torch.tensor([math.exp(2 * v) * (math.exp(2 * v) - 1), 4 * v**2, v**2], dtype=DOUBLE)
    seeds = 40 if samples > 100 else 400
    found = [quasi(bent, x, samples, seed) for seed in range(seeds)]
    for values, exact in (
        ([y.loc[0] for y in found], mean),
        ([y.cov.var[0] for y in found], var),
        (
            [y.covariance()[0, 0, 1] for y in found],
            2 * v * math.exp(v) * v,
        ),  # E[e^s q] - E[e^s] E[q]
    ):
        stacked = torch.stack(values)
        z = (stacked.mean(0) - exact) / (stacked.std(0) / seeds**0.5)
        assert float(z.abs().max()) < 4


@functools.cache
def network(name: str) -> tuple[nn.Module, ua.Gaussian, Tensor, Tensor]:
    """A network, an input, and its output's mean and standard deviation from 2¹⁷ points."""
    torch.manual_seed(11)
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "softmax": nn.GELU, "regressor": nn.ReLU}[name]
    sizes = [10, 64, 64, 1] if name == "regressor" else [6, 16, 16, 4]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    layers[-1:] = [nn.Softmax(1)] if name == "softmax" else []
    model = nn.Sequential(*layers).double().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter *= 1.7
    x = ua.Gaussian(torch.randn(4, sizes[0], dtype=DOUBLE), std=0.3)
    return model, x, *truth(model, x)


def truth(model: Callable[..., Any], x: ua.Gaussian) -> tuple[Tensor, Tensor]:
    engine = SobolEngine(x.shape[1], scramble=True, seed=123)
    noise = torch.special.ndtri(engine.draw(2**17, dtype=DOUBLE) + 2.0**-31)
    outputs = [model(row + noise * std) for row, std in zip(x.loc, x.std + 0, strict=True)]
    return torch.stack([y.mean(0) for y in outputs]), torch.stack([y.std(0) for y in outputs])


@pytest.mark.parametrize("name", ["relu", "tanh", "softmax", "regressor"])
@pytest.mark.parametrize("samples", [32, 256, 1024])
def test_standard_errors_are_honest(name: str, samples: int) -> None:
    model, x, mean, std = network(name)
    of_mean, of_std = [], []
    for seed in range(100):
        y = quasi(model, x, samples, seed)
        of_mean.append((y.loc - mean) / y.standard_error.mean)
        of_std.append((y.std + 0 - std) / y.standard_error.std)
    assert 0.75 < rms(of_mean) < 1.35
    assert 0.75 < rms(of_std) < 1.35


def test_standard_errors_of_many_independent_outputs_are_honest() -> None:
    x = ua.Gaussian(torch.linspace(-1, 1, 20, dtype=DOUBLE).unsqueeze(0), std=0.5)
    mean, std = (t.squeeze(-1) for t in truth(torch.tanh, ua.Gaussian(x.loc.T, x.cov.var.T)))
    of_mean, of_std = [], []
    for seed in range(60):
        y = quasi(torch.tanh, x, 256, seed)
        of_mean.append((y.loc[0] - mean) / y.standard_error.mean[0])
        of_std.append((y.std[0] + 0 - std) / y.standard_error.std[0])
    assert 0.75 < rms(of_mean) < 1.35
    assert 0.75 < rms(of_std) < 1.35


def test_outputs_that_are_one_and_the_same_know_no_more_than_one() -> None:
    model, x, _, _ = network("regressor")
    scale = torch.linspace(0.1, 3, 12, dtype=DOUBLE)
    one, twelve = (
        quasi(model, x).standard_error,
        quasi(lambda t: model(t) * scale, x).standard_error,
    )
    torch.testing.assert_close(twelve.mean, one.mean * scale, rtol=1e-6, atol=0)
    torch.testing.assert_close(twelve.std, one.std * scale, rtol=1e-6, atol=0)


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5])
def test_errors_are_several_times_smaller(noise: float) -> None:
    model, x, _, _ = network("regressor")
    x = ua.Gaussian(x.loc, std=noise)
    mean, std = truth(model, x)
    errors = {}
    for qmc in (False, True):
        found = [
            ua.propagate(model, x, "samples", samples=512, seed=seed, qmc=qmc) for seed in range(25)
        ]
        errors[qmc] = rms((y.loc - mean) / std for y in found), rms(y.std / std - 1 for y in found)
    assert errors[True][0] < errors[False][0] / 3
    assert errors[True][1] < errors[False][1] / 1.4


def test_a_linear_map_of_one_source_is_nearly_exact() -> None:
    x = ua.Gaussian(torch.zeros(1, 1, dtype=DOUBLE), 1.0)
    found = [quasi(lambda t: 3 * t + 1, x, 512, seed) for seed in range(20)]
    assert rms(y.loc - 1 for y in found) < 0.015  # of random samples 3/√512 = 0.13
    assert rms(y.cov.var / 9 - 1 for y in found) < 0.02  # and √(2/512) = 0.06


def test_the_covariance_has_the_variances() -> None:
    model, x, _, _ = network("relu")
    y = quasi(model, x, 48)
    covariance = y.covariance()
    torch.testing.assert_close(covariance.diagonal(dim1=1, dim2=2), y.cov.var)
    torch.testing.assert_close(covariance, covariance.mT)
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-12


def test_shared_and_dense_noise_have_the_right_covariance() -> None:
    generator = torch.Generator().manual_seed(3)
    factors = torch.randn(3, 2, 5, generator=generator, dtype=DOUBLE)
    shared = ua.Gaussian.from_factors(torch.zeros(2, 5, dtype=DOUBLE), factors)
    root = torch.randn(2, 5, 5, generator=generator, dtype=DOUBLE)
    dense = ua.Gaussian.from_dense(torch.zeros(2, 5, dtype=DOUBLE), root @ root.mT)
    own = ua.Gaussian(torch.zeros(2, 5, dtype=DOUBLE), 0.5)
    y = quasi(lambda a, b, c: a + b + c, (own, shared, dense), 4096)
    exact = root @ root.mT + torch.einsum("kbi,kbj->bij", factors, factors)
    exact = exact + 0.5 * torch.eye(5, dtype=DOUBLE)
    scale = exact.diagonal(dim1=1, dim2=2).sqrt()
    off = (y.covariance() - exact) / (scale.unsqueeze(1) * scale.unsqueeze(2))
    assert float(off.abs().max()) < 0.02


def test_results_without_noise_are_the_models_own() -> None:
    mean = torch.randn(3, 4)
    y = quasi(torch.tanh, ua.Gaussian(mean, torch.zeros(3, 4)), 16)
    torch.testing.assert_close(y.loc, torch.tanh(mean))
    assert float(y.cov.var.abs().max()) == 0
    assert all(float(error.abs().max()) < 1e-6 for error in y.standard_error)


# ------------------------------------------------------------------ what it must not depend on


def test_neighbours_with_other_sources_make_no_difference() -> None:
    """Of the first item only one element is random; of its neighbour none, or all nine."""
    mean = torch.randn(2, 9, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    few = torch.zeros(1, 9, dtype=DOUBLE)
    few[0, 4] = 0.3
    second = ua.Gaussian(mean, 0.2)
    for other in (torch.zeros(1, 9), torch.full((1, 9), 0.5), torch.rand(1, 9)):
        first = ua.Gaussian(mean, torch.cat([few, other.double()]))
        both = quasi(lambda a, b: torch.sin(a) * b, (first, second))
        alone = quasi(lambda a, b: torch.sin(a) * b, (first[:1], second[:1]))
        torch.testing.assert_close(alone.loc[0], both.loc[0])
        torch.testing.assert_close(alone.cov.var[0], both.cov.var[0])


def test_an_items_position_makes_no_difference_with_noise_that_items_share() -> None:
    factors = torch.randn(1, 1, 3, dtype=DOUBLE).expand(1, 4, 3)
    shared = ua.Gaussian.from_factors(torch.zeros(4, 3, dtype=DOUBLE), factors)
    own = ua.Gaussian(torch.zeros(4, 3, dtype=DOUBLE), 0.4)
    y = quasi(lambda a, b: torch.sin(a + b), (own, shared))
    torch.testing.assert_close(y.loc, y.loc[:1].expand(4, 3))
    torch.testing.assert_close(y.cov.var, y.cov.var[:1].expand(4, 3))


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("interacting", [False, True])
def test_the_result_does_not_depend_on_the_chunk(chunk: int, interacting: bool) -> None:
    def model(t: Tensor) -> Tensor:
        y = torch.sin(t) * t.roll(1, 1)
        return y - y.mean(0) if interacting else y

    x = ua.Gaussian(torch.randn(3, 4, dtype=DOUBLE), 0.3)
    whole, cut = quasi(model, x, 96), quasi(model, x, 96, chunk=chunk)
    torch.testing.assert_close(cut.loc, whole.loc, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(cut.covariance(), whole.covariance(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(cut.standard_error, whole.standard_error, rtol=1e-6, atol=1e-12)


def test_the_seed_decides_and_torchs_generators_are_left_alone() -> None:
    model, x, _, _ = network("tanh")
    before = torch.random.get_rng_state()
    a, b, other = (quasi(model, x, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(a.loc, b.loc)
    assert not torch.equal(a.loc, other.loc)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert a.provenance.options["qmc"] is True


# ------------------------------------------------------------------ items that influence each other


def total(t: Tensor) -> Tensor:
    """One number for the whole batch."""
    return t.sum().reshape(1, 1)


@pytest.mark.parametrize("keys", [None, list(range(20, 26))], ids=["seed", "keys"])
def test_items_that_influence_each_other_have_independent_noise(keys: Sequence[int] | None) -> None:
    """The same dimension of two items, scrambled twice, would have signs that agree in a whole replicate."""
    x = ua.Gaussian(torch.zeros(6, 1, dtype=DOUBLE), 1.0)
    errors = {
        qmc: rms(
            ua.propagate(total, x, "samples", samples=256, qmc=qmc, seed=seed, keys=keys).cov.var
            / 6
            - 1
            for seed in range(60)
        )
        for qmc in (False, True)
    }
    assert errors[True] < 1.3 * errors[False]
    if keys is None:  # one net for the whole batch
        assert errors[True] < 0.6 * errors[False]


def test_keys_are_honest_where_items_influence_each_other() -> None:
    x = ua.Gaussian(torch.zeros(6, 2, dtype=DOUBLE), 1.0)
    z = []
    for seed in range(100):
        y = quasi(lambda t: torch.tanh(t).sum().reshape(1, 1), x, 128, seed, keys=range(6))
        z.append(y.loc / y.standard_error.mean)
    assert 0.75 < rms(z) < 1.35


# ------------------------------------------------------------------ inputs and models of all kinds


@pytest.mark.parametrize("samples", [16, 20, 100, 1000, 2048, 4096])
def test_any_number_of_samples_that_can_be_divided(samples: int) -> None:
    model, x, mean, std = network("tanh")
    y = quasi(model, x, samples)
    assert rms((y.loc - mean) / std) < 2 / samples**0.5


@pytest.mark.parametrize("shape", [(), (5,), (2, 5), (2, 3, 4), (0, 3), (2, 0), (0,)])
def test_inputs_of_any_shape(shape: tuple[int, ...]) -> None:
    y = quasi(lambda t: 2 * t + 1, ua.Gaussian(torch.zeros(shape), torch.full(shape, 0.25)), 512)
    assert y.shape == shape
    torch.testing.assert_close(y.loc, torch.ones(shape), atol=0.02, rtol=0)
    torch.testing.assert_close(y.std + 0, torch.ones(shape), atol=0.03, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, DOUBLE])
def test_dtypes(dtype: torch.dtype) -> None:
    x = ua.Gaussian(torch.ones(3, 4, dtype=dtype), torch.full((3, 4), 0.25, dtype=dtype))
    y = quasi(lambda t: t * t, x, 512)
    assert y.dtype == dtype
    torch.testing.assert_close(
        y.loc.double(), torch.full((3, 4), 1.25, dtype=DOUBLE), atol=0.02, rtol=0
    )
    exact = torch.full((3, 4), 1.125, dtype=DOUBLE).sqrt()
    torch.testing.assert_close((y.std + 0).double(), exact, atol=0.03, rtol=0)


def test_several_inputs_in_a_structure_and_several_outputs() -> None:
    a, b = (ua.Gaussian(torch.zeros(2, 3, dtype=DOUBLE), v) for v in (1.0, 4.0))
    y = quasi(
        lambda d: {"sum": d["a"] + d["b"], "product": d["a"] * d["b"]}, ({"a": a, "b": b},), 4096
    )
    torch.testing.assert_close(
        y["sum"].cov.var, torch.full((2, 3), 5.0, dtype=DOUBLE), rtol=0.03, atol=0
    )
    torch.testing.assert_close(
        y["product"].cov.var, torch.full((2, 3), 4.0, dtype=DOUBLE), rtol=0.08, atol=0
    )


@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_randomness_of_the_models_own_is_sampled_along() -> None:
    model = nn.Dropout(0.5).train()
    x = ua.Gaussian(torch.ones(1, 4, dtype=DOUBLE), 0.25)
    z = []
    for seed in range(60):
        y = quasi(model, x, 64, seed)
        z.append((y.loc - 1) / y.standard_error.mean)
    assert 0.75 < rms(z) < 1.35
    assert abs(float(y.cov.var.mean()) - 1.5) < 0.6  # E[4 x²]/2 - 1


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 15}, "samples must be at least 16, not 15"),
        ({"samples": 18}, "18 samples cannot be divided; take 20"),
        ({"samples": 1028}, "1028 samples cannot be divided; take 1032"),
        ({"samples": 64, "antithetic": True}, "takes the place of antithetic=True"),
        ({"samples": 64, "centred": True}, "takes the place of centred=True"),
        ({"samples": 64, "moderated": True}, "takes the place of moderated=True"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ua.propagate(torch.tanh, ua.Gaussian(torch.zeros(2), 1.0), "samples", qmc=True, **options)


def test_more_sources_than_dimensions_are_refused() -> None:
    def first(t: Tensor) -> Tensor:
        return t[..., :2]

    most = ua.Gaussian(torch.zeros(1, MOST_SOURCES), 1.0)
    assert quasi(nn.Identity(), most[:, :-1], 16).shape == (1, MOST_SOURCES - 1)
    more = ua.Gaussian(torch.zeros(1, MOST_SOURCES + 1), 1.0)
    with pytest.raises(ValueError, match="an item has 21202 noise sources; leave qmc=True out"):
        quasi(first, more, 16)
    one = ua.Gaussian(torch.zeros(1, 1), 1.0)
    with pytest.raises(ValueError, match="21202 noise sources"):
        quasi(lambda a, b: first(a) + b, (most, one), 16)
    whole = ua.Gaussian(torch.zeros(3, MOST_SOURCES // 2), 1.0)
    with pytest.raises(ValueError, match="taken together, has 31800 noise sources"):
        quasi(lambda t: t[:, :2] - t[:, :2].mean(0), whole, 16)
