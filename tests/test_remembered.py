"""What was found out about a model is remembered as long as it is the same model, and no longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua

METHODS = ("auto", "samples", "hybrid")
FLAG = {"centre": False}


def centred(y: Any) -> Any:
    return y - y.mean(0)


class Model(nn.Module):
    """Items influence each other once it is switched."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 5)
        self.config = {"centre": False}
        self.last: Callable[[Any], Any] = torch.tanh

    def forward(self, x: Any) -> Any:
        y = self.last(self.layer(x))
        return centred(y) if self.config["centre"] or FLAG["centre"] else y


def _entry(model: Model) -> None:
    model.config["centre"] = True


def _function(model: Model) -> None:
    model.last = lambda y: centred(torch.tanh(y))


def _hook(model: Model) -> None:
    model.layer.register_forward_hook(lambda module, args, output: centred(output))


def _forward(model: Model) -> None:
    plain = model.layer.forward
    model.layer.forward = lambda x: centred(plain(x))  # type: ignore[method-assign]


def _global(model: Model) -> None:
    FLAG["centre"] = True


def noisy(seed: int = 0) -> ua.Gaussian:
    generator = torch.Generator().manual_seed(seed)
    return ua.Gaussian(torch.randn(4, 6, generator=generator), var=torch.ones(4, 6))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("switch", [_entry, _function, _hook, _forward, _global])
def test_a_model_that_is_changed_is_found_out_about_again(
    switch: Callable[[Model], None], method: str
) -> None:
    try:
        model = Model()
        ua.propagate(model, noisy(), method)
        switch(model)
        found = ua.propagate(model, noisy(), method)
        fresh = Model()
        switch(fresh)
        expected = ua.propagate(fresh, noisy(), method)
        assert torch.equal(found.mean, expected.mean)
        assert torch.equal(found.std, expected.std)
        truth = ua.propagate(fresh, noisy(), "samples", samples=4000, seed=9)
        assert float((found.std / truth.std).min()) > 0.5
    finally:
        FLAG["centre"] = False


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_is_remembered_by_its_attributes() -> None:
    class Switched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centre = False

        def forward(self, x: Tensor) -> Tensor:
            y = torch.tanh(x)
            if self.centre:
                y = y - y.mean(0)
            return y

    model = torch.jit.script(Switched())
    ua.propagate(model, noisy())
    model.centre = True
    truth = ua.propagate(model, noisy(), "samples", samples=4000, seed=9)
    assert float((ua.propagate(model, noisy()).std / truth.std).min()) > 0.5


@pytest.mark.parametrize("method", METHODS)
def test_which_argument_is_random_makes_a_difference(method: str) -> None:
    def model(a: Any, b: Any) -> Any:
        return torch.tanh(a) * (b - b.mean(0))

    x, plain = noisy(), torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    ua.propagate(model, (x, plain), method)
    y = ua.propagate(model, (plain, x), method)
    truth = ua.propagate(model, (plain, x), "samples", samples=4000, seed=9)
    assert float((y.std / truth.std).min()) > 0.5


@pytest.mark.parametrize("method", METHODS)
def test_names_of_arguments_make_a_difference(method: str) -> None:
    def model(x: Any, scale: bool = False, centre: bool = False) -> Any:
        y = torch.tanh(x)
        return centred(y) if centre else 2 * y if scale else y

    ua.propagate(model, {"x": noisy(), "scale": True}, method)
    y = ua.propagate(model, {"x": noisy(), "centre": True}, method)
    truth = ua.propagate(lambda x: centred(torch.tanh(x)), noisy(), "samples", samples=4000, seed=9)
    assert float((y.std / truth.std).min()) > 0.5


@pytest.mark.parametrize("method", ["hybrid", "adjoint", "diagonal"])
def test_a_branch_for_what_is_no_tensor_that_is_switched_on_later(method: str) -> None:
    config = {"check": False}

    def model(x: Any) -> Any:
        y = torch.tanh(x)
        return y if config["check"] and not isinstance(x, Tensor) else 3 * y

    before = ua.propagate(model, noisy(), method)
    config["check"] = True
    after = ua.propagate(model, noisy(), method)
    torch.testing.assert_close(after.std + 0, before.std + 0)


@pytest.mark.parametrize("method", ["samples", "auto", "hybrid"])
def test_the_second_call_gives_what_the_first_has_given(method: str) -> None:
    torch.manual_seed(4)

    class Own(nn.Sequential):
        """With code of its own, as far as uaprop can tell."""

    model = Own(nn.Linear(100, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 7))
    for seed in range(4):
        x = ua.Gaussian(torch.randn(5, 100), std=0.7)
        first, second = (ua.propagate(model, x, method, seed=seed) for _ in range(2))
        assert torch.equal(first.mean, second.mean)
        assert torch.equal(first.std, second.std)


@pytest.mark.parametrize("options", [{}, {"rtol": 0.2}])
def test_a_model_that_squeezes_is_not_cut_to_single_items(options: dict[str, Any]) -> None:
    class Squeezing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(100, 64), nn.Linear(64, 3)

        def forward(self, x: Any) -> Any:
            return self.last(torch.cos(2 * self.first(x))).squeeze()

    var = torch.tensor([1e-6, 1e-6, 1e-6, 100.0]).view(4, 1).expand(4, 100).contiguous()
    x = ua.Gaussian(torch.randn(4, 100, generator=torch.Generator().manual_seed(0)), var=var)
    y = ua.propagate(Squeezing(), x, **options)
    truth = ua.propagate(Squeezing(), x, "samples", samples=4000, seed=5)
    torch.testing.assert_close(y.std + 0, truth.std + 0, rtol=0.2, atol=0)


def test_many_sources_of_items_that_influence_each_other_are_no_quasi_random_ones() -> None:
    y = ua.propagate(lambda x: centred(torch.relu(x)), ua.Gaussian(torch.zeros(300, 30), var=1.0))
    assert not y.provenance.options.get("qmc")
    assert "influence each other" in y.provenance.reason


def test_no_more_samples_than_allowed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    for most in (36, 100, 3000):
        y = ua.propagate(
            model, ua.Gaussian(torch.randn(2, 3), std=0.5), rtol=0.001, max_samples=most
        )
        assert y.provenance.options["samples"] <= most
        assert "not reached" in y.provenance.reason


def test_samples_that_are_all_the_same_have_not_reached_a_tolerance() -> None:
    def rare(x: Any) -> Any:
        return torch.relu(x[:, :1] - 6)

    y = ua.propagate(rare, ua.Gaussian(torch.zeros(2, 80), std=1.0), rtol=0.1, max_samples=600)
    assert "not reached" in y.provenance.reason


def test_a_tolerance_for_an_empty_batch() -> None:
    y = ua.propagate(torch.relu, ua.Gaussian(torch.zeros(0, 3), var=torch.ones(0, 3)), rtol=0.1)
    assert y.shape == (0, 3)


class Slotted:
    """Without a dict."""

    __slots__ = ("cache",)
    cache: Tensor


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.memory = nn.Linear(4, 3), Slotted()

    def forward(self, x: Any) -> Any:
        if not hasattr(self.memory, "cache"):
            self.memory.cache = x.mean(1, keepdim=True)
        return torch.relu(self.layer(x)) * self.memory.cache


def test_what_a_sample_leaves_in_a_slot_does_not_reach_the_next_one() -> None:
    model = Caching()
    x = ua.Gaussian(torch.ones(2, 4), std=0.5)
    y = ua.propagate(model, x, "samples", samples=4000)
    assert not hasattr(model.memory, "cache")
    truth = ua.propagate(
        lambda x: torch.relu(model.layer(x)) * x.mean(1, keepdim=True), x, "samples", samples=4000
    )
    torch.testing.assert_close(y.std + 0, truth.std + 0)


def test_a_model_may_hold_a_long_linked_list() -> None:
    class Node:
        def __init__(self, following: Any) -> None:
            self.following = following

    model = Caching()
    chain = None
    for _ in range(3000):
        chain = Node(chain)
    model.chain = chain
    assert ua.propagate(model, ua.Gaussian(torch.ones(2, 4), std=0.1), "samples").shape == (2, 3)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda x: torch.fft.fft(x), "complex"),
        (lambda x: (x * 2, x.sum().item()), "float"),
        (lambda x: x.detach().numpy() * 2, "ndarray"),
        (lambda x: (x, x.tolist()), "float"),
    ],
)
def test_linear_refuses_results_that_are_no_real_tensors(model: Any, name: str) -> None:
    with pytest.raises(ua.UnsupportedOperation, match=name):
        ua.propagate(model, ua.Gaussian(torch.randn(2, 3), std=0.1), "linear")


def test_linear_takes_a_model_that_counts_in_a_buffer() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return self.layer(x * self.count)

    model, x = Counting().eval(), ua.Gaussian(torch.randn(2, 4), std=0.5)
    y = ua.propagate(model, x, "linear")
    expected = ua.propagate(model.layer, x, "linear")
    torch.testing.assert_close(y.std + 0, expected.std + 0)


@pytest.mark.parametrize("weight", [500.0, 1e-4])
@pytest.mark.parametrize("method", ["sketch", "diagonal"])
def test_variances_that_half_precision_cannot_hold_are_refused(method: str, weight: float) -> None:
    layer = nn.Linear(4, 3, bias=False).half()
    layer.weight.data.fill_(weight)
    x = ua.Gaussian(torch.ones(2, 4).half(), std=0.5)
    with pytest.raises(ua.UnsupportedOperation, match="float16 cannot hold"):
        ua.propagate(layer, x, method)


def test_half_precision_that_an_operation_is_asked_for_is_checked_too() -> None:
    x = ua.Gaussian(torch.zeros(2, 64).half(), var=torch.full((2, 64), 1e-5))
    with pytest.raises(ua.UnsupportedOperation, match="float16 cannot hold"):
        ua.propagate(lambda x: torch.softmax(x, -1, dtype=torch.float16), x, "diagonal")


def test_without_noise_the_standard_deviation_is_zero() -> None:
    torch.manual_seed(0)
    y = ua.propagate(nn.Linear(30, 20), ua.Gaussian(torch.randn(3, 30), var=0.0), "hybrid")
    assert not y.std.any()
