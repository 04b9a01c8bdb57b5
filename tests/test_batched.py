"""Samples that go through a model in one batch give what they give one by one, or do not go so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.methods import plain_samples
from uaprop.methods.arguments import Arguments
from uaprop.methods.batch_independence import BatchItems, agree
from uaprop.methods.samples import Stream

BATCH, FEATURES, DRAWS = 4, 256, 24

Model = Callable[..., Any]


@pytest.fixture(autouse=True)
def _small_samples_are_joined_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_samples, "_WORTH_JOINING", 0)


def noisy() -> ua.Gaussian:
    generator = torch.Generator().manual_seed(5)
    mean = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    return ua.Gaussian(mean, std=0.3)


def layers(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(FEATURES, 6), *more, nn.Tanh(), nn.Linear(6, 3)).double()


def recorded(model: Model) -> tuple[Model, list[int]]:
    """A function that calls a model, and how many batch elements it was called with."""
    sizes: list[int] = []

    def call(x: Tensor) -> Any:
        sizes.append(len(x))
        return model(x)

    return call, sizes


def one_by_one(model: Model, x: ua.Gaussian, items: bool = True, count: int = DRAWS) -> Tensor:
    """The results of the very samples, without the method; items have the same noise or their own."""
    draws = Stream([x], 0, items=items, total=count).take(count)[0]
    with torch.no_grad():
        return torch.stack([model(draw.clone()) for draw in draws])


def sampled(model: Model, x: ua.Gaussian, **options: Any) -> Any:
    return ua.propagate(model, x, method="samples", samples=DRAWS, **options)


def test_independent_batch_elements_go_in_one_batch() -> None:
    network = layers(nn.BatchNorm1d(6)).eval()
    model, sizes = recorded(network)
    x = noisy()
    y = sampled(model, x)
    assert max(sizes) == BATCH * (DRAWS - 1)  # one alone at first
    answers = one_by_one(network, x)
    torch.testing.assert_close(y.mean, answers.mean(0))
    torch.testing.assert_close(y.var, answers.var(0))
    torch.testing.assert_close(y.covariance()[1], torch.cov(answers[:, 1].T))


@pytest.mark.parametrize("more", [(), ("name", 3)])
def test_structures_of_answers(more: tuple[Any, ...]) -> None:
    network = layers()
    model, sizes = recorded(lambda x: {"scores": network(x), "both": (x[:, :2], *more)})
    x = noisy()
    y = sampled(model, x)
    assert max(sizes) == BATCH * (DRAWS - 1)  # one alone at first
    assert y["both"][1:] == more
    torch.testing.assert_close(y["scores"].var, one_by_one(network, x).var(0))
    torch.testing.assert_close(y["both"][0].var, one_by_one(lambda x: x[:, :2], x).var(0))


THRESHOLD = 33.2  # between the norms of the samples: some of them reach it


def _branching(x: Tensor) -> Tensor:
    return x[:, :3] * 2 if x.norm() > THRESHOLD else x[:, :3]


def _branching_in_numpy(x: Tensor) -> Tensor:
    return x[:, :3] * 2 if np.linalg.norm(x.numpy()) > THRESHOLD else x[:, :3]


def _branching_in_python(x: Tensor) -> Tensor:
    norm = math.hypot(*(value for row in x.tolist() for value in row))
    return x[:, :3] * 2 if norm > THRESHOLD else x[:, :3]


MIXING: dict[str, Model] = {
    "batch statistics": layers(nn.BatchNorm1d(6, track_running_stats=False)),
    "mean over the batch": lambda x: x[:, :3] - x[:, :3].mean(0),
    "barely the mean over the batch": lambda x: x[:, :3] + 1e-9 * x.mean(0)[:3],
    "those before": lambda x: x[:, :3].cumsum(0),
    "those after": lambda x: x[:, :3].flip(0).cumsum(0).flip(0),
    "the one before": lambda x: x[:, :3] + x[:, :3].roll(1, 0),
    "the one two before": lambda x: x[:, :3] + x[:, :3].roll(2, 0),
    "the first": lambda x: x[:, :3] + x[:1, :3],
    "the last": lambda x: x[:, :3] + x[-1:, :3],
    "order": lambda x: x[:, :3].sort(0).values,
    "a branch": _branching,
    "a branch in numpy": _branching_in_numpy,
    "a branch in Python": _branching_in_python,
    "a norm that seldom matters": lambda x: x[:, :3] / x.norm().clamp_min(THRESHOLD),
    "a norm that barely varies and seldom matters": lambda x: (
        x[:, :3] / (1e3 + 1e-2 * x.norm()).clamp_min(1e3 + 1e-2 * THRESHOLD)
    ),
    "a comparison": lambda x: x[:, :3] * (x[:, :3] > x[:, :3].mean(0)),
    "a sum over the batch": lambda x: x[:, :3].sum(0),
}
# Their items are independent, but not however many there are, or not certainly so.
INSEPARABLE: dict[str, Model] = {
    "the number of them": lambda x: x[:, :3] / len(x),
    "barely the number of them": lambda x: x[:, :3] * (1 + 1e-6 / len(x)),
    "a fixed number of them": lambda x: x.reshape(BATCH, -1)[:, :3],
    "their places": lambda x: x[:, :3] * torch.arange(1, BATCH + 1)[:, None],
}


@pytest.mark.parametrize("name", [*MIXING, *INSEPARABLE])
def test_what_depends_on_the_batch_is_not_joined(name: str) -> None:
    model, x = (MIXING | INSEPARABLE)[name], noisy()
    y = sampled(model, x)
    answers = one_by_one(model, x, items=name in INSEPARABLE)
    torch.testing.assert_close(y.mean, answers.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(y.var, answers.var(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("method", ["samples", "hybrid", "adjoint", "sketch"])
def test_items_that_influence_each_other_have_independent_noise(name: str, method: str) -> None:
    """The standard deviation against plain Monte Carlo, with noise of its own for every item."""
    x = noisy()
    small = ua.Gaussian(x.loc[:, :8], std=0.3)
    model = MIXING[name]
    if "branch" in name or name.endswith("seldom matters"):
        return  # of these inputs no norm reaches the threshold
    if name == "batch statistics":
        model = nn.BatchNorm1d(8, track_running_stats=False).double()
    torch.manual_seed(3)
    draws = small.loc + 0.3 * torch.randn(20_000, BATCH, 8, dtype=torch.float64)
    with torch.no_grad():
        truth = torch.stack([model(draw) for draw in draws]).std(0)
    options: dict[str, Any] = {"samples": 4000} if method == "samples" else {}
    if method == "hybrid":
        options = {"samples": 256}
    if method in ("adjoint", "sketch"):
        options = {"probes": 256}
    try:
        y = ua.propagate(model, small, method, **options)
    except ua.UnsupportedOperation:
        return
    off = (y.std - truth).abs() / truth.mean()
    if name in ("order", "a comparison") and method in ("adjoint", "sketch"):
        return  # rules of their own; what is asked here is whose noise it is
    assert float(off.mean()) < 0.1, (y.std, truth)


def test_the_norms_reach_the_threshold_now_and_then() -> None:
    """So that the first sample does not tell, and later ones do."""
    norms = one_by_one(lambda x: x.norm(), noisy(), items=False)
    assert norms[0] < THRESHOLD
    assert 1 < (norms > THRESHOLD).sum() < DRAWS


def test_an_influence_that_shows_in_no_output_yet_is_found() -> None:
    """Samples further out would reach the threshold; the norm that is compared tells before."""
    x = ua.Gaussian(noisy().loc, std=0.03)
    for model, independent in (
        (lambda x: x[:, :3] / x.norm().clamp_min(1e3), False),
        (lambda x: x[:, :3] / x.norm(dim=1, keepdim=True).clamp_min(1e3), True),
    ):
        assert BatchItems(model, Arguments((x,), {})).are_independent == independent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_the_same_up_to_rounding_of_each_item(dtype: torch.dtype) -> None:
    items = torch.tensor([[1.0], [1e-6]], dtype=dtype) * torch.rand(2, 50, dtype=dtype)
    rounding = 10 * torch.finfo(dtype).eps
    assert agree({"y": items * (1 + rounding)}, {"y": items})
    assert not agree({"y": items * torch.tensor([[1.0], [1 + 1e-3]], dtype=dtype)}, {"y": items})
    assert not agree({"y": items}, {"z": items})
    assert not agree({"y": items.where(items < items.max(), torch.nan)}, {"y": items})


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", ["torch", "numpy", "a maximum"])
def test_samples_are_not_joined_if_they_would_seldom_influence_each_other(
    name: str, batch: int
) -> None:
    x = ua.Gaussian(torch.zeros(batch, 64, dtype=torch.float64), std=1.0)
    threshold = 0.15 if batch == 1 else 0.12  # seldom above it alone, never together
    model: dict[str, Model] = {
        "torch": lambda x: torch.where(x.mean() > threshold, x[:, :3] * 5, x[:, :3]),
        "numpy": lambda x: x[:, :3] * (5 if x.numpy().mean() > threshold else 1),
        "a maximum": lambda x: x[:, :3] + (x.amax() > 2.8),
    }
    y = ua.propagate(model[name], x, "samples", samples=400)
    draws = Stream([x], 0, items=batch == 1, total=400).take(400)[0]
    answers = torch.stack([model[name](draw) for draw in draws])
    assert answers.std(0).min() > 0
    torch.testing.assert_close(y.mean, answers.mean(0))
    torch.testing.assert_close(y.var, answers.var(0))


def test_samples_are_not_joined_if_an_element_of_the_first_decides_for_all() -> None:
    """No tensor that is computed has lost its batch: only the value that is read tells."""
    x = ua.Gaussian(torch.zeros(1, 64, dtype=torch.float64), std=1.0)

    def model(x: Tensor) -> Tensor:
        return x[:, :3] * 5 if x[0, 0] > 1 else x[:, :3]

    y = ua.propagate(model, x, "samples", samples=400)
    answers = one_by_one(model, x, count=400)
    torch.testing.assert_close(y.mean, answers.mean(0))
    torch.testing.assert_close(y.var, answers.var(0))


@pytest.mark.parametrize("batch", range(2, 13))
def test_an_exchange_within_groups_of_neighbours_is_found(batch: int) -> None:
    """Each item gets the next one of its group; all tensors keep the batch."""
    x = ua.Gaussian(torch.arange(batch * 8.0).view(batch, 8).sin(), std=0.3)
    for size in (k for k in range(2, batch + 1) if batch % k == 0):
        place = torch.arange(batch)
        following = place // size * size + (place + 1) % size

        def model(x: Tensor, following: Tensor = following) -> Tensor:
            return x + x[following]

        assert not BatchItems(model, Arguments.of(x)).are_independent, size
        with pytest.raises(ValueError, match="influence each other"):
            ua.propagate(model, x, "hybrid", samples=4, chunk=1)


def test_randomness_of_the_model_is_sampled_along() -> None:
    model, _ = recorded(nn.Dropout(0.5))
    y = ua.propagate(model, ua.Gaussian(torch.ones(4, 16), 1e-6), method="samples", samples=2000)
    torch.testing.assert_close(y.var, torch.ones(4, 16), rtol=0.15, atol=0)  # p/(1-p) = 1
    off = y.covariance() - torch.diag_embed(y.var)
    assert off.abs().max() < 5 / 2000**0.5


def test_running_statistics_see_numbers_only() -> None:
    model = layers(nn.BatchNorm1d(6)).train()
    y = sampled(model, noisy())
    assert model[1].running_mean.isfinite().all()
    assert y.var.isfinite().all()


def test_a_failing_attempt_leaves_the_draws_alone() -> None:
    """The model writes to its input and then cannot do with another batch."""

    def model(x: Tensor) -> Tensor:
        x.mul_(2)
        if len(x) not in (3, BATCH):  # passes the trial
            raise ValueError("another batch")
        return x[:, :3]

    x = noisy()
    y = sampled(model, x)
    torch.testing.assert_close(y.var, one_by_one(model, x).var(0))


def test_plain_tensors_of_the_batch_are_not_repeated() -> None:
    weights = torch.arange(1.0, BATCH + 1, dtype=torch.float64)[:, None]
    x = noisy()
    y = ua.propagate(lambda x, w: (x * w)[:, :3], (x, weights), method="samples", samples=DRAWS)
    torch.testing.assert_close(y.var, one_by_one(lambda x: (x * weights)[:, :3], x).var(0))


def test_errors_of_the_model_come_up() -> None:
    def model(x: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        sampled(model, noisy())


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 6), (4, 8), (5, 3, 16)])
def test_draws_do_not_depend_on_how_many_are_taken(
    shape: tuple[int, ...], dtype: torch.dtype, antithetic: bool
) -> None:
    x = ua.Gaussian(torch.zeros(shape, dtype=dtype), std=0.7)
    whole = Stream([x], 3, antithetic).take(70)[0]
    stream = Stream([x], 3, antithetic)
    pieces = torch.cat([stream.take(count)[0] for count in (1, 2, 40, 27)])
    assert torch.equal(whole, pieces)
    assert abs(float(whole.std()) - 0.7) < 0.25  # and they are draws
    assert len(whole.unique()) > 0.99 * whole.numel()


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Flatten())), True),
        (nn.BatchNorm1d(3).eval(), True),
        (nn.BatchNorm1d(3), False),
        (nn.BatchNorm1d(3, track_running_stats=False).eval(), False),
        (nn.Dropout(0.5), False),
        (nn.Dropout(0.5).eval(), True),
        (nn.Flatten(0), False),
        (nn.Softmax(0), False),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), False),
        (torch.relu, False),
    ],
)
def test_which_models_are_known_to_be_independent(layer: Model, known: bool) -> None:
    x = ua.Gaussian(torch.randn(5, 3), std=0.1)
    assert BatchItems(layer, Arguments.of(x)).are_known is known
    if isinstance(layer, nn.Module):
        assert BatchItems(nn.Sequential(layer), Arguments.of(x)).are_known is known


def test_channels_of_an_image_without_a_batch_are_not_items() -> None:
    """A convolution takes (channels, height, width), too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Tanh(), nn.Flatten())
    image = ua.Gaussian(torch.randn(3, 8, 8), std=0.3)
    assert not BatchItems(model, Arguments.of(image)).are_known
    draws = image.loc + 0.3 * torch.randn(4000, 3, 8, 8)
    with torch.no_grad():
        truth = torch.stack([model(draw) for draw in draws]).std(0)
    for method, options in (("samples", {"samples": 4000}), ("hybrid", {"samples": 64})):
        y = ua.propagate(model, image, method, **options)
        assert float((y.std / truth - 1).abs().mean()) < 0.05


def test_a_hook_may_connect_batch_elements() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    arguments = Arguments.of(ua.Gaussian(torch.randn(5, 3), std=0.1))
    assert BatchItems(model, arguments).are_known
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        assert not BatchItems(model, arguments).are_known
    model[0].register_forward_hook(lambda _, __, y: y - y.mean(0))
    assert not BatchItems(model, arguments).are_known
    assert not BatchItems(model, arguments).are_independent


@pytest.mark.parametrize("draws", [3, 40])
def test_known_models_need_no_trial(draws: int) -> None:
    model = layers().float()
    given: list[int] = []
    torch.manual_seed(1)
    x = ua.Gaussian(torch.randn(BATCH, FEATURES), std=0.3)
    plain, _ = recorded(model)  # not known
    expected = ua.propagate(plain, x, method="samples", samples=draws)

    class Counted(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.nn.functional.linear and args[0].shape[-1] == FEATURES:
                given.append(len(args[0]))
            return func(*args, **(kwargs or {}))

    with Counted():
        found = ua.propagate(model, x, method="samples", samples=draws)
    assert given[0] == BATCH * min(16, draws)
    assert sum(given) == BATCH * (draws + 1)  # the last of them at the mean
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.var, expected.var, rtol=1e-4, atol=1e-6)
