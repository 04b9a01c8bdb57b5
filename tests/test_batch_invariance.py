"""An item's result does not depend on its neighbours, its position or how the batch is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop.demo import digits_cnn, digits_images

SAMPLED: dict[str, dict[str, Any]] = {
    "auto": {},
    "hybrid": {"samples": 16},
    "adjoint": {"probes": 16},
    "sketch": {"probes": 16},
    "samples": {"samples": 50},
    "samples, moderated": {"samples": 12, "moderated": True},
    "samples, antithetic": {"samples": 20, "antithetic": True},
    "samples, centred": {"samples": 20, "centred": True},
    "samples, qmc": {"samples": 64, "qmc": True},
}
Batch = tuple[nn.Module, ua.Gaussian]


class Residual(nn.Module):
    """A network that is no chain of known layers: it has to be looked at."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(x + self.body(x)))


class Recurrent(nn.Module):
    """Its items are in the second dimension of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x.transpose(0, 1))[0][-1])


@pytest.fixture(scope="module", params=["digits", "residual"])
def batch(request: pytest.FixtureRequest) -> Batch:
    if request.param == "digits":
        images = digits_images()[0]
        return digits_cnn(), ua.Gaussian(images, var=0.02 + 0.04 * images)
    generator = torch.Generator().manual_seed(4)
    mean = torch.randn(24, 12, generator=generator)
    return Residual().eval(), ua.Gaussian(mean, std=0.1 + torch.rand(24, 12, generator=generator))


def propagated(name: str, model: Callable[..., Any], x: ua.Gaussian, **more: Any) -> ua.Gaussian:
    result: ua.Gaussian = ua.propagate(model, x, name.split(",")[0], **SAMPLED[name], **more)
    return result


def same(a: ua.Gaussian, b: ua.Gaussian) -> None:
    """The same but for rounding, which another size of the batch changes."""
    scale = float(b.loc.abs().max())
    torch.testing.assert_close(a.loc, b.loc, rtol=1e-4, atol=1e-5 * scale)
    torch.testing.assert_close(a.cov.var, b.cov.var, rtol=2e-3, atol=1e-7 * scale**2)


def pick(x: ua.Gaussian, items: Any) -> ua.Gaussian:
    return ua.Gaussian(x.loc[items], x.cov.var[items])


@pytest.mark.parametrize("name", SAMPLED)
def test_alone_or_in_a_batch(name: str, batch: Batch) -> None:
    model, x = batch
    whole = propagated(name, model, x)
    for item in (0, 7, 23):
        alone = propagated(name, model, pick(x, slice(item, item + 1)))
        torch.testing.assert_close(alone.loc[0], whole.loc[item], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(alone.std[0] + 0, whole.std[item] + 0, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", SAMPLED)
def test_in_any_order_and_in_any_shard(name: str, batch: Batch) -> None:
    model, x = batch
    whole = propagated(name, model, x)
    order = torch.arange(23, -1, -1)
    reversed_ = propagated(name, model, pick(x, order))
    torch.testing.assert_close(reversed_.std[order] + 0, whole.std + 0, rtol=1e-3, atol=1e-6)
    shards = [propagated(name, model, pick(x, slice(i, i + 7))) for i in range(0, 24, 7)]
    std = torch.cat([shard.std + 0 for shard in shards])
    torch.testing.assert_close(std, whole.std + 0, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["hybrid", "samples", "samples, moderated"])
def test_covariances_standard_errors_and_flips_do_not_depend_on_neighbours(
    name: str, batch: Batch
) -> None:
    model, x = batch
    whole = propagated(name, model, x)
    part = propagated(name, model, pick(x, slice(5, 9)))
    torch.testing.assert_close(part.covariance(), whole.covariance()[5:9], rtol=2e-3, atol=1e-6)
    for one, other in zip(part.standard_error, whole.standard_error, strict=True):
        torch.testing.assert_close(one, other[5:9], rtol=5e-3, atol=1e-7)
    flips = ua.flip_probability(part).flip, ua.flip_probability(whole).flip[5:9]
    torch.testing.assert_close(*flips, rtol=1e-3, atol=1e-5)


def test_the_number_of_contenders_of_a_neighbour_does_not_matter() -> None:
    """One row has two classes that matter, another has forty."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 40, generator=generator)
    mean[0, :2] += 60
    y = ua.Gaussian(mean, var=torch.tensor([[0.5], [4.0]]))
    both = ua.flip_probability(y)
    for row in (0, 1):
        alone = ua.flip_probability(ua.Gaussian(mean[row : row + 1], y.cov.var[row : row + 1]))
        assert torch.equal(alone.win[0], both.win[row])


@pytest.mark.parametrize("name", ["hybrid", "adjoint", "sketch", "samples"])
def test_items_in_another_dimension_of_the_activations_are_found(name: str) -> None:
    model, generator = Recurrent().eval(), torch.Generator().manual_seed(1)
    x = ua.Gaussian(torch.randn(4, 3, 6, generator=generator), std=0.3)
    whole = propagated(name, model, x)
    alone = propagated(name, model, pick(x, slice(2, 3)))
    torch.testing.assert_close(alone.std[0] + 0, whole.std[2] + 0, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", SAMPLED)
def test_keys_belong_to_items(name: str, batch: Batch) -> None:
    model, x = batch
    keys = list(range(100, 124))
    whole = propagated(name, model, x, keys=keys)
    some = [3, 20, 11]
    part = propagated(name, model, pick(x, some), keys=[keys[i] for i in some])
    torch.testing.assert_close(part.std + 0, whole.std[some] + 0, rtol=1e-3, atol=1e-6)
    other = propagated(name, model, x, keys=[key + 1 for key in keys])
    assert not torch.allclose(other.std + 0, whole.std + 0, rtol=1e-4)


def test_items_with_the_same_noise_differ_with_keys() -> None:
    mean = torch.zeros(3, 50)
    same_noise = ua.propagate(torch.tanh, ua.Gaussian(mean, 0.5), "samples", samples=20)
    own_noise = ua.propagate(
        torch.tanh, ua.Gaussian(mean, 0.5), "samples", samples=20, keys=[1, 2, 3]
    )
    torch.testing.assert_close(same_noise.mean[0] + 0, same_noise.mean[2] + 0)
    assert not torch.allclose(own_noise.mean[0] + 0, own_noise.mean[2] + 0)


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ([1, 2], ValueError, "2 keys were given for a batch of 3"),
        ([1, 2, 2.5], TypeError, "list of integers"),
        ("abc", TypeError, "list of integers"),
    ],
)
def test_bad_keys_are_refused(keys: Any, error: type[Exception], words: str) -> None:
    x = ua.Gaussian(torch.zeros(3, 4), 0.5)
    with pytest.raises(error, match=words):
        ua.propagate(torch.tanh, x, "samples", keys=keys)


@pytest.mark.parametrize("name", ["hybrid", "adjoint", "sketch", "samples"])
def test_the_same_key_twice_is_refused_where_items_influence_each_other(name: str) -> None:
    x = ua.Gaussian(torch.zeros(3, 4), 0.5)
    with pytest.raises(ValueError, match="give each a key of its own"):
        propagated(name, lambda x: torch.tanh(x) - torch.tanh(x).mean(0), x, keys=[1, 2, 2])


class Remembering(nn.Module):
    """Assigns a buffer, counts its calls, and keeps what it computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 4)
        self.register_buffer("ema", torch.zeros(4))
        self.seen: Tensor | None = None

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if isinstance(y, Tensor):
            self.ema = 0.9 * self.ema + 0.1 * y.detach().mean(0)
            self.seen = y.detach()
        return torch.tanh(y)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_model_that_assigns_a_buffer_works_afterwards(name: str) -> None:
    model, x = Remembering().eval(), ua.Gaussian(torch.randn(5, 6), std=0.2)
    expected = model(x.loc + 0)
    propagated(name, model, x)
    torch.testing.assert_close(model(x.loc + 0), expected)
    assert model.ema.isfinite().all()


def test_the_model_never_sees_what_is_no_number() -> None:
    def model(x: Any) -> Any:
        values = x if isinstance(x, Tensor) else x.loc
        assert bool(values.isfinite().all())
        return torch.tanh(x)

    x = ua.Gaussian(torch.randn(5, 6), std=0.2)
    for name in SAMPLED:
        assert propagated(name, model, x).std.isfinite().all()


def test_items_of_a_sketch_are_uncorrelated_afterwards() -> None:
    """The items had the same signs; their average over the batch must not know of it."""
    x = ua.Gaussian(torch.zeros(64, 40), std=1.0)
    found = []
    for seed in range(20):
        y = ua.propagate(lambda t: t * 2 + torch.tanh(t), x, "sketch", probes=16, seed=seed)
        single = float(y.var.mean())
        found.append(float(y.mean(0).var.mean()) / (single / 64))
    assert 0.8 < sum(found) / len(found) < 1.25


@pytest.mark.parametrize("name", ["hybrid", "adjoint", "samples"])
def test_numbers_for_each_item_are_a_vector_with_a_covariance(name: str) -> None:
    x = ua.Gaussian(torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), std=0.5)
    y = propagated(name, lambda t: torch.tanh(t).sum(1), x)
    covariance = y.covariance()
    assert covariance.shape == (24, 24)
    correlation = covariance / (y.std.unsqueeze(0) * y.std.unsqueeze(1))
    off = correlation - torch.eye(24)
    assert float(off.abs().mean()) < 0.25
    assert float(off.abs().max()) < 0.9


@pytest.mark.parametrize("keys", [None, [0, 1, 2, 3], [5, 5, 5, 5]], ids=str)
def test_items_of_a_sketch_are_independent_of_each_other(keys: list[int] | None) -> None:
    x = ua.Gaussian(torch.zeros(4, 6), var=1.0)
    y = ua.propagate(nn.Identity(), x, "sketch", probes=1024, keys=keys)
    torch.testing.assert_close((y[0] - y[1]).cov.var, torch.full((6,), 2.0), rtol=0.25, atol=0)


@pytest.mark.parametrize("keys", [None, [0, 1, 2, 3]], ids=str)
def test_a_sketch_is_right_where_items_influence_each_other(keys: list[int] | None) -> None:
    x = ua.Gaussian(torch.zeros(4, 6), var=1.0)
    y = ua.propagate(lambda t: t - t.mean(0), x, "sketch", probes=1024, keys=keys)
    torch.testing.assert_close(y.cov.var, torch.full((4, 6), 0.75), rtol=0.25, atol=0)


def test_a_sketch_keeps_noise_that_items_share() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(2, 4, 6, generator=generator)
    x = ua.Gaussian.from_factors(torch.zeros(4, 6), factors)
    y = ua.propagate(nn.Identity(), x, "sketch", probes=16)
    torch.testing.assert_close(y.sum(0).cov.var, factors.sum(1).square().sum(0))
    own = ua.Gaussian(torch.zeros(4, 6), var=1.0)
    y = ua.propagate(torch.add, (x, own), "sketch", probes=4096)
    torch.testing.assert_close(
        y.sum(0).cov.var, 4 + factors.sum(1).square().sum(0), rtol=0.25, atol=0
    )


@pytest.mark.parametrize("method", ["samples", "hybrid", "adjoint"])
def test_a_number_for_each_item_is_not_correlated_with_those_of_other_items(method: str) -> None:
    """Items with the same noise would be, and the covariance of a vector has all pairs."""
    x = ua.Gaussian(torch.zeros(16, 5), std=1.0)
    y = ua.propagate(lambda x: torch.sinh(x).sum(1), x, method)
    correlation = y.covariance() / (y.std.unsqueeze(0) * y.std.unsqueeze(1))
    others = correlation.tril(-1).sum() / (16 * 15 / 2)
    assert abs(float(others)) < 0.04
