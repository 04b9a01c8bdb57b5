"""Models with randomness of their own: the moments over all outcomes, or a refusal that says what to do."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua

METHODS = ("diagonal", "linear", "sketch", "adjoint", "hybrid", "full")
OPTIONS: dict[str, dict[str, Any]] = {
    "sketch": {"probes": 512},
    "adjoint": {"probes": 512},
    "hybrid": {"samples": 512},
    "samples": {"samples": 4000},
}
MEAN = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
STD = 0.05
_OWN = torch.Generator().manual_seed(0)


class Model(nn.Module):
    """A random step between two linear layers."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.step = step

    def forward(self, x: Any) -> Any:
        return self.last(self.step(self.first(x)))


class Rows(nn.Module):
    """A branch left out at random for each batch element, from plain random numbers."""

    def forward(self, x: Any) -> Any:
        return x * (torch.rand(x.shape[0], 1) < 0.7)


STEPS: dict[str, Callable[[Any], Any]] = {
    "Dropout": nn.Dropout(0.5),
    "F.dropout": lambda x: F.dropout(x, 0.5, True),
    "AlphaDropout": nn.AlphaDropout(0.3),
    "FeatureAlphaDropout": nn.FeatureAlphaDropout(0.3),
    "RReLU": nn.RReLU(),
    "torch.rand": lambda x: x * torch.rand(8),
    "torch.rand_like": lambda x: x * torch.rand_like(x),
    "torch.bernoulli": lambda x: x * torch.bernoulli(torch.full((8,), 0.5)),
    "a row at a time": Rows(),
    "in place": lambda x: x * torch.empty(8).bernoulli_(0.5),
    "added": lambda x: x + 0.1 * torch.randn(8),
    "numpy": lambda x: x * float(np.random.rand()),
    "Python": lambda x: x * random.random(),
    "a generator of its own": lambda x: x * torch.rand(8, generator=_OWN),
}


def sampled(model: nn.Module, count: int = 4000) -> Tensor:
    """Samples by hand, one after the other."""
    noise = torch.randn(count, *MEAN.shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return torch.stack([model(MEAN + STD * each) for each in noise])


def _result(model: nn.Module, method: str) -> ua.Gaussian | None:
    """What a method gives; None if it refuses."""
    try:
        return ua.propagate(model, ua.Gaussian(MEAN, std=STD), method, **OPTIONS.get(method, {}))
    except ua.UnsupportedOperation:
        return None


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_no_method_is_silently_wrong(name: str) -> None:
    model = Model(STEPS[name])
    expected = sampled(model)
    for method in (*METHODS, "samples"):
        y = _result(model, method)
        if y is None:
            assert method != "samples"
            continue
        torch.testing.assert_close(y.std, expected.std(0), rtol=0.15, atol=0.005)
        assert float((y.mean - expected.mean(0)).abs().max()) < 0.15 * float(expected.std(0).max())


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_linear_refuses_whatever_is_random(name: str) -> None:
    with pytest.raises(ua.UnsupportedOperation, match=r"random.*(eval\(\)|samples)"):
        ua.propagate(Model(STEPS[name]), ua.Gaussian(MEAN, std=STD), "linear")


@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_a_refusal_names_operation_module_and_remedy() -> None:
    model = Model(nn.Dropout(0.5))
    with pytest.raises(ua.UnsupportedOperation) as caught:
        ua.propagate(model, ua.Gaussian(MEAN, std=STD), "linear")
    assert caught.value.operation == "torch.nn.functional.dropout"
    assert caught.value.module == "step (Dropout)"
    assert re.search(r"model\.eval\(\).*\"adjoint\"", str(caught.value))


@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_rare_dropout_is_refused_also_if_it_does_not_happen() -> None:
    with pytest.raises(ua.UnsupportedOperation, match="dropout"):
        ua.propagate(Model(nn.Dropout(1e-4)), ua.Gaussian(MEAN, std=STD), "linear")


class LayerDrop(nn.Module):
    """A layer left out now and then, as in language and speech models."""

    def __init__(self, uniform: Callable[[], float], probability: float) -> None:
        super().__init__()
        self.uniform, self.probability = uniform, probability

    def forward(self, x: Any) -> Any:
        return x if self.uniform() < self.probability else x + 3 * x


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("uniform", [lambda: float(torch.rand([])), random.random])
def test_a_layer_that_is_seldom_left_out_is_refused(uniform: Any, method: str) -> None:
    random.seed(0)
    with pytest.raises(ua.UnsupportedOperation, match="rand"):
        ua.propagate(Model(LayerDrop(uniform, 0.05)), ua.Gaussian(MEAN, std=STD), method)


@pytest.mark.parametrize("seed", range(8))
def test_a_toss_of_a_coin_is_noticed_in_evaluation_mode(seed: int) -> None:
    random.seed(seed)
    model = Model(LayerDrop(random.random, 0.5)).eval()
    assert ua.propagate(model, ua.Gaussian(MEAN, std=STD)).provenance.method == "samples"


@pytest.mark.parametrize("method", METHODS)
def test_random_numbers_that_are_not_used_do_no_harm(method: str) -> None:
    def step(x: Any) -> Any:
        torch.rand([])  # as models with layer drop do in evaluation mode, too
        random.random()
        return x

    plain = ua.propagate(Model(lambda x: x), ua.Gaussian(MEAN, std=STD), method)
    y = ua.propagate(Model(step), ua.Gaussian(MEAN, std=STD), method)
    torch.testing.assert_close(y.std, plain.std)


def test_auto_samples_a_model_that_hybrid_refuses() -> None:
    model = Model(
        lambda x: x * (1 + 1e-3 * torch.rand(8))
    )  # mostly linear in the noise all the same
    x = ua.Gaussian(MEAN.repeat(1, 20), std=STD)
    y = ua.propagate(lambda x: model(x[:, :6]), x)
    assert y.provenance.method == "samples"
    assert "torch.rand" in y.provenance.reason


@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_calibrate_refuses_masks_that_all_samples_share() -> None:
    assert ua.calibrate(Model(nn.Dropout(0.5)), MEAN, std=STD).factors
    with pytest.raises(ua.UnsupportedOperation, match=r"torch\.rand"):
        ua.calibrate(Model(STEPS["torch.rand"]), MEAN, std=STD)


@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_dropout_of_a_plain_argument_is_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Any, other: Any) -> Any:
            return x * self.drop(other)

    for method in ("diagonal", "hybrid", "adjoint"):
        with pytest.raises(ua.UnsupportedOperation, match="dropout"):
            ua.propagate(Two(), (ua.Gaussian(MEAN, std=STD), torch.ones(3, 6)), method)


@pytest.mark.parametrize("method", ["adjoint", "full", "hybrid"])  # diagonal ignores shared masks
def test_stochastic_depth_has_the_moments_over_all_masks(method: str) -> None:
    class DropPath(nn.Module):
        """As other packages write it."""

        def __init__(self) -> None:
            super().__init__()
            self.drop_prob = 0.3

        def forward(self, x: Any) -> Any:
            if not self.training:
                return x
            return x * (torch.rand(x.shape[0], 1) < 1 - self.drop_prob) / (1 - self.drop_prob)

    model = Model(DropPath())
    expected = sampled(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = ua.propagate(model, ua.Gaussian(MEAN, std=STD), method, **OPTIONS.get(method, {}))
    rtol = (
        0.6 if method == "diagonal" else 0.15
    )  # a mask is shared by a row, which diagonal ignores
    torch.testing.assert_close(y.std, expected.std(0), rtol=rtol, atol=0.005)


@pytest.mark.parametrize("samples", [8, 17, 200])
def test_hybrid_has_a_mask_of_dropout_for_each_of_its_samples(samples: int) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of training mode
        y = ua.propagate(model, ua.Gaussian(MEAN, std=STD), "hybrid", samples=samples)
        truth = ua.propagate(model, ua.Gaussian(MEAN, std=STD), "samples", samples=5000)
    assert 0.5 < float((y.std / truth.std).mean()) < 1.5
