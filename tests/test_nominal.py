"""y.nominal: the model's own output at the mean input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import uaprop as ua
from uaprop.checksum import checksum

METHODS: dict[str, dict[str, Any]] = {
    "auto": {},
    "hybrid": {"samples": 8},
    "adjoint": {"probes": 4},
    "sketch": {"probes": 4},
    "linear": {},
    "samples": {"samples": 8},
    "full": {},
}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval().requires_grad_(False)


def noisy(batch: int = 5) -> ua.Gaussian:
    mean = torch.randn(batch, 6, generator=torch.Generator().manual_seed(1))
    return ua.Gaussian(mean, std=0.7)


def propagated(model: Callable[..., Any], x: Any, method: str, **options: Any) -> Any:
    return ua.propagate(model, x, method, **METHODS[method], **options)


def test_it_is_the_models_output_at_the_mean(method: str) -> None:
    model, x = network(), noisy()
    y = propagated(model, x, method)
    torch.testing.assert_close(y.nominal, model(x.loc))
    assert type(y.nominal) is Tensor
    assert not y.nominal.requires_grad
    if method != "linear":  # whose mean it is
        assert (y.nominal - y.loc).abs().max() > 0.01


@pytest.mark.parametrize("method", ["diagonal", "calibrated"])
def test_methods_that_would_take_much_longer_for_it_do_not_have_it(method: str) -> None:
    model, x = network(), noisy()
    options = {"calibration": ua.calibrate(model, x)} if method == "calibrated" else {}
    y = ua.propagate(model, x, method, **options)
    with pytest.raises(ValueError, match=f"'{method}' does not run the model on the mean") as told:
        _ = y.nominal
    assert "use model(x.mean)" in str(told.value)


def test_values_that_are_no_results_do_not_have_it() -> None:
    x = noisy()
    for value in (x, network()(x), x + 1):
        with pytest.raises(ValueError, match="not what ua"):
            _ = value.nominal


@dataclass
class Scores:
    first: Any
    names: tuple[str, ...]
    rest: dict[str, Any]


def several(x: Any) -> Scores:
    return Scores(torch.relu(x), ("a",), {"sum": x.sum(1), "constant": torch.ones(2), "x": x})


@pytest.mark.parametrize("method", ["auto", "hybrid", "linear", "samples", "full"])
def test_each_of_several_outputs_has_its_own(method: str) -> None:
    x = noisy()
    y, expected = propagated(several, x, method), several(x.loc)
    torch.testing.assert_close(y.first.nominal, expected.first)
    for name in ("sum", "x"):
        torch.testing.assert_close(y.rest[name].nominal, expected.rest[name])


@pytest.mark.parametrize("method", ["auto", "hybrid", "adjoint", "linear"])
def test_some_outputs_have_those(method: str) -> None:
    model, x = network(), noisy()
    for outputs in ([2, 0], [-1]):
        y = propagated(model, x, method, outputs=outputs)
        torch.testing.assert_close(y.nominal, model(x.loc)[:, outputs])
    image = propagated(lambda t: model(t).unflatten(1, (2, 2)), x, method, outputs=[3])
    torch.testing.assert_close(image.nominal, model(x.loc)[:, [3]])
    vector = propagated(lambda t: model(t)[0], x, method, outputs=[1, 3])
    torch.testing.assert_close(vector.nominal, model(x.loc)[0, [1, 3]])


@pytest.mark.parametrize("method", ["hybrid", "adjoint", "sketch", "linear", "samples", "auto"])
def test_in_pieces_it_is_the_same(method: str) -> None:
    chain, x = network(), noisy()
    for model in (chain, lambda t: chain(t) + t[:, :4]):
        y = propagated(model, x, method, chunk=2)
        torch.testing.assert_close(y.nominal, model(x.loc))


def test_several_inputs_are_at_their_means(method: str) -> None:
    a, b = noisy(), ua.Gaussian(torch.linspace(-1, 1, 30).view(5, 6), 0.3)
    y = propagated(
        lambda s, t, scale: torch.relu(s) * t + scale, (a, b, torch.full((5, 6), 2.0)), method
    )
    torch.testing.assert_close(y.nominal, torch.relu(a.loc) * b.loc + 2)


@pytest.mark.parametrize("method", ["auto", "hybrid", "samples", "linear"])
def test_of_a_program_and_of_a_model_that_takes_tensors_only(method: str) -> None:
    model, x = network(), noisy()
    program = torch.export.export(model, (x.loc,))
    torch.testing.assert_close(propagated(program, x, method).nominal, model(x.loc))

    def strict(t: Any) -> Any:
        if not isinstance(t, Tensor):
            raise TypeError("a tensor is needed")
        return model(t)

    torch.testing.assert_close(propagated(strict, x, method).nominal, model(x.loc))


# ------------------------------------------------------------ when it is evaluated


def test_it_is_decided_when_the_model_is_propagated(method: str) -> None:
    model, x = network(), noisy()
    y = propagated(model, x, method)
    expected = y.nominal.clone()
    model[0].weight.zero_()  # type: ignore[index]
    x.loc.zero_()
    assert torch.equal(y.nominal, expected)


class Reused(nn.Module):
    """It returns a buffer that its next call overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("result", torch.zeros(5, 6))

    def forward(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or x.requires_grad or len(x) != 5:
            return torch.exp(x)
        self.result.copy_(torch.exp(x))
        return self.result


@pytest.mark.parametrize("method", ["auto", "hybrid", "samples"])
def test_a_buffer_that_the_model_returns_is_not_read_later(method: str) -> None:
    x = noisy()
    y = propagated(Reused(), x, method)
    torch.testing.assert_close(y.nominal, x.loc.exp())


class Counting(nn.Module):
    """Its output depends on how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.total += 1
        return x * 2 + self.calls + 10 * float(self.total)


@pytest.mark.parametrize("method", ["hybrid", "samples", "full", "sketch"])
def test_a_model_with_a_state_is_as_it_was(method: str) -> None:
    model, x = Counting(), noisy()
    y = propagated(model, x, method)
    torch.testing.assert_close(y.nominal, 2 * x.loc + 11)
    assert (model.calls, float(model.total)) == (0, 0)


class OwnNoise(nn.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Any) -> Any:
        return torch.relu(x) + self.size * torch.rand(4, generator=self.generator).sum()


@pytest.mark.parametrize("method", ["auto", "samples"])
def test_a_model_with_random_numbers_has_no_single_output(method: str) -> None:
    dropout = nn.Sequential(network(), nn.Dropout()).eval()
    dropout[1].train()
    noise = OwnNoise(0.5).eval()
    for model in (dropout, noise, lambda x: torch.relu(x) + torch.rand(())):
        y = propagated(model, noisy(), method)
        with pytest.raises(ValueError, match="randomness of its own"):
            _ = y.nominal
    assert torch.equal(noise.generator.get_state(), torch.Generator().manual_seed(3).get_state())


def test_dropout_that_a_rule_averages_over_has_none_either() -> None:
    model = nn.Sequential(network(), nn.Dropout()).eval()
    model[1].train()
    for method in ("hybrid", "adjoint"):
        with pytest.raises(ValueError, match="randomness of its own"):
            _ = propagated(model, noisy(), method).nominal


@pytest.mark.parametrize("method", ["auto", "samples", "hybrid"])
def test_random_numbers_that_do_not_matter_do_no_harm(method: str) -> None:
    """As of layer drop in evaluation mode."""
    x = noisy()
    torch.manual_seed(7)
    before = torch.get_rng_state()

    class Unused(nn.Module):
        def forward(self, x: Any) -> Any:
            torch.rand(3)
            return torch.relu(x)

    y = propagated(Unused().eval(), x, method)
    torch.testing.assert_close(y.nominal, torch.relu(x.loc))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_function_of_gaussians_alone_has_none() -> None:
    y = ua.propagate(
        lambda x: x * x.var.sum() if isinstance(x, ua.Gaussian) else x.no, noisy(), "full"
    )
    with pytest.raises(ValueError, match="the model fails there"):
        _ = y.nominal


def test_it_can_be_computed_with_in_whatever_mode_it_was_made() -> None:
    model, x = network(), noisy()
    with torch.inference_mode():
        y = ua.propagate(model, x)
    weight = torch.ones(4, requires_grad=True)
    (y.nominal * weight).sum().backward()
    torch.testing.assert_close(weight.grad, model(x.loc).sum(0))


# ------------------------------------------------------------ what is done with a result


def test_constants_in_a_concatenation_are_what_they_are() -> None:
    y = propagated(network(), noisy(), "hybrid")
    wide = torch.cat([y, torch.full((5, 2), 3.0)], 1)
    torch.testing.assert_close(wide.nominal, torch.cat([y.nominal, torch.full((5, 2), 3.0)], 1))


def test_together_with_a_result_that_has_none_it_is_not_known() -> None:
    model, x = network(), noisy()
    y = torch.cat([propagated(model, x, "hybrid"), ua.propagate(model, x, "hybrid")[:0]])
    torch.testing.assert_close(y.nominal, model(x.loc))
    dropout = nn.Sequential(model, nn.Dropout()).eval()
    dropout[1].train()
    both = torch.cat([propagated(model, x, "hybrid"), propagated(dropout, x, "hybrid")])
    with pytest.raises(ValueError, match="randomness of its own"):
        _ = both.nominal
    for part in (both[:2], both[7:].double()):
        with pytest.raises(ValueError, match="randomness of its own"):
            _ = part.nominal


def test_why_it_is_not_known_is_kept_in_a_file(tmp_path: Path) -> None:
    model = nn.Sequential(network(), nn.Dropout()).eval()
    model[1].train()
    propagated(model, noisy(), "samples").save(tmp_path / "y")
    with pytest.raises(ValueError, match="randomness of its own"):
        _ = ua.load(tmp_path / "y").nominal


def rewritten(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    text = json.dumps(notes)
    metadata |= {"notes": text, "checksum": checksum(tensors, text)}
    save_file(tensors, str(path), metadata=metadata)


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["notes"])


def test_a_file_from_before_there_was_a_nominal_output_is_read(tmp_path: Path) -> None:
    y = propagated(network(), noisy(), "hybrid")
    y.save(tmp_path / "y")
    tensors, notes = contents(tmp_path / "y")
    del tensors["nominal"], notes["provenance"]["without_nominal"]
    rewritten(tmp_path / "y", tensors, notes)
    found = ua.load(tmp_path / "y")
    torch.testing.assert_close(found.covariance(), y.covariance())
    with pytest.raises(ValueError, match="was stored or made without it; use model"):
        _ = found.nominal


def test_a_file_with_one_of_another_shape_is_refused(tmp_path: Path) -> None:
    propagated(network(), noisy(), "hybrid").save(tmp_path / "y")
    tensors, notes = contents(tmp_path / "y")
    tensors["nominal"] = tensors["nominal"][1:].clone()
    rewritten(tmp_path / "y", tensors, notes)
    with pytest.raises(ValueError, match=r"the nominal output \(4, 4\)"):
        ua.load(tmp_path / "y")
