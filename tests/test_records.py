"""Models that take and return objects: dataclasses and the like are walked by every method, or refused."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua

METHODS: dict[str, dict[str, Any]] = {
    "auto": {},
    "hybrid": {"samples": 8},
    "adjoint": {"probes": 4},
    "linear": {},
    "sketch": {"probes": 4},
    "full": {},
    "samples": {"samples": 50},
    "diagonal": {},
}


@dataclass
class Scores:
    logits: Any
    name: str = "scores"
    hidden: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    logits: Any
    classes: int = 3


@dataclass
class Derived:
    logits: Any
    double: Any = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.logits


class Pair(NamedTuple):
    logits: Any
    label: str


class Plain:
    def __init__(self, logits: Any) -> None:
        self.logits = logits


class Slotted:
    __slots__ = ("__hidden", "logits")

    def __init__(self, logits: Any) -> None:
        self.logits = logits
        self.__hidden = 2 * logits

    @property
    def double(self) -> Any:
        return self.__hidden


class Listed(list):  # type: ignore[type-arg]
    """A list that torch does not know as one."""


STRUCTURES = {
    "dataclass": lambda y: Scores(y),
    "frozen": lambda y: Frozen(y),
    "derived": lambda y: Derived(y),
    "namedtuple": lambda y: Pair(y, "a"),
    "namespace": lambda y: SimpleNamespace(logits=y, steps=3),
    "object": lambda y: Plain(y),
    "slots": lambda y: Slotted(y),
}


class Returns(nn.Module):
    def __init__(self, structure: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.structure = structure

    def forward(self, x: Any) -> Any:
        return self.structure(self.layers(x))


def noisy() -> ua.Gaussian:
    return ua.Gaussian(torch.linspace(-1, 1, 8).view(2, 4), 0.3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_result_in_an_object_is_the_result(structure: str, method: str) -> None:
    options = METHODS[method]
    model = Returns(STRUCTURES[structure]).eval()
    y = ua.propagate(model, noisy(), method, **options)
    wanted = ua.propagate(model.layers, noisy(), method, **options)
    assert type(y) is type(STRUCTURES[structure](torch.zeros(())))
    assert isinstance(y.logits, ua.Gaussian)
    torch.testing.assert_close(y.logits.loc, wanted.loc)
    torch.testing.assert_close(y.logits.cov.var, wanted.cov.var)
    assert y.logits.provenance.method == wanted.provenance.method
    if structure == "frozen":
        assert y.classes == 3
    if structure in ("derived", "slots"):
        assert isinstance(y.double, ua.Gaussian)
        torch.testing.assert_close(y.double.cov.var, 4 * wanted.cov.var)


@pytest.mark.parametrize("method", METHODS)
def test_objects_are_nested(method: str) -> None:
    def model(x: Any) -> Any:
        return {"a": [Scores(2 * x, hidden=(Frozen(3 * x), None))], "b": 1}

    y = ua.propagate(model, noisy(), method, **METHODS[method])
    inner = y["a"][0].hidden[0]
    assert isinstance(inner, Frozen)
    assert isinstance(y["a"][0].logits, ua.Gaussian)
    assert inner.logits.provenance is not None
    torch.testing.assert_close(inner.logits.loc, 3 * noisy().loc, rtol=0.5, atol=0.5)
    assert y["a"][0].name == "scores"
    assert y["b"] == 1


@pytest.mark.parametrize("method", METHODS)
def test_objects_are_arguments(method: str) -> None:
    layer = Returns(lambda y: y).eval()

    def model(batch: Scores) -> Any:
        assert isinstance(batch, Scores)
        assert batch.name == "scores"
        return layer(batch.logits)

    y = ua.propagate(model, Scores(noisy()), method, **METHODS[method])
    wanted = ua.propagate(layer, noisy(), method, **METHODS[method])
    torch.testing.assert_close(y.loc, wanted.loc)
    torch.testing.assert_close(y.cov.var, wanted.cov.var)


def test_a_batch_in_pieces_returns_one_object() -> None:
    model = Returns(STRUCTURES["dataclass"]).eval()
    y = ua.propagate(model, noisy(), "hybrid", samples=8, chunk=1)
    whole = ua.propagate(model, noisy(), "hybrid", samples=8)
    torch.testing.assert_close(y.logits.covariance(), whole.logits.covariance())
    sketched = ua.propagate(model, noisy(), "sketch", probes=4, chunk=1)
    assert sketched.logits.shape == (2, 3)


def test_coverage_and_compare_look_into_objects() -> None:
    model = Returns(STRUCTURES["dataclass"]).eval()
    assert ua.coverage(model, noisy()).supported
    found = ua.compare(model, noisy(), ["linear"], samples=100, repeats=1)
    assert found.outputs == 6


def test_a_module_with_error_bars_returns_the_object() -> None:
    module = ua.as_module(Returns(STRUCTURES["dataclass"]).eval())
    found = module(torch.zeros(2, 4), 0.1)
    assert isinstance(found, Scores)
    mean, var = found.logits
    assert mean.shape == var.shape == (2, 3)


def test_outputs_can_be_chosen_in_an_object() -> None:
    model = Returns(STRUCTURES["dataclass"]).eval()
    for method in ("auto", "hybrid", "linear"):
        assert ua.propagate(model, noisy(), method, outputs=[2]).logits.shape == (2, 1)


@pytest.mark.parametrize("method", METHODS)
def test_what_cannot_be_walked_is_refused_by_name(method: str) -> None:
    with pytest.raises(TypeError, match=r"Listed holds tensors that uaprop cannot see"):
        ua.propagate(lambda x: Listed([2 * x]), noisy(), method, **METHODS[method])


HIDDEN: dict[str, Any] = {
    "mappingproxy": lambda y: MappingProxyType({"logits": y}),
    "dict_values": lambda y: {"logits": y}.values(),
    "dict_items": lambda y: {"logits": y}.items(),
    "set": lambda y: {y},
    "generator": lambda y: (part for part in [y]),
    "map": lambda y: map(torch.exp, [y]),
    "zip": lambda y: zip([y], [1], strict=True),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", HIDDEN)
def test_containers_that_cannot_be_walked_are_refused_by_name(kind: str, method: str) -> None:
    for model in (lambda x: HIDDEN[kind](2 * x), lambda x: [2 * x, {"a": HIDDEN[kind](2 * x)}]):
        with pytest.raises(TypeError, match=rf"{kind} .*(cannot see|only once)"):
            ua.propagate(model, noisy(), method, **METHODS[method])


def test_an_object_without_tensors_is_left_alone() -> None:
    constant = Scores(None)
    _, found = ua.propagate(lambda x: (2 * x, constant), noisy(), "linear")
    assert found is constant


def test_an_object_that_holds_itself_is_refused() -> None:
    def model(x: Any) -> Any:
        y = Plain(2 * x)
        y.own = y  # type: ignore[attr-defined]
        return y

    with pytest.raises(TypeError, match=r"Plain .* holds itself"):
        ua.propagate(model, noisy(), "diagonal")


# ------------------------------------------------------------ keyword arguments


class Image(nn.Module):
    """Called as transformers' models are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, pixel_values: Any = None, mask: Any = None, double: bool = False) -> Any:
        y = self.layer(pixel_values)
        y = y if mask is None else y * mask
        return {"logits": 2 * y if double else y}


@pytest.mark.parametrize("method", METHODS)
def test_a_model_is_called_by_keywords(method: str) -> None:
    options = METHODS[method]
    model, x, mask = Image().eval(), noisy(), torch.tensor([1.0, 0.0, 2.0])
    wanted = ua.propagate(model, {"pixel_values": x, "mask": mask}, method, **options)["logits"]
    for found in (
        ua.propagate(model, method=method, pixel_values=x, mask=mask, **options),
        ua.propagate(model, x, method, mask=mask, **options),
        ua.propagate(model, {"pixel_values": x}, method, mask=mask, **options),
    ):
        torch.testing.assert_close(found["logits"].loc, wanted.loc)
        torch.testing.assert_close(found["logits"].cov.var, wanted.cov.var)


def test_keywords_that_hold_tensors_are_the_models() -> None:
    def model(first: Any, rest: Any) -> Any:
        return first + rest[0]["x"]

    y = ua.propagate(model, noisy(), "linear", rest=[{"x": noisy()}])
    torch.testing.assert_close(y.cov.var, torch.full((2, 4), 0.6))


def test_a_misspelt_option_is_not_taken_for_an_argument() -> None:
    with pytest.raises(TypeError, match="no option 'sample'; it has averaged, chunk"):
        ua.propagate(Image(), noisy(), "hybrid", sample=16)
    with pytest.raises(TypeError, match=r"no option 'double'; .* goes into a dict"):
        ua.propagate(Image(), pixel_values=noisy(), double=True)
    y = ua.propagate(Image(), {"pixel_values": noisy(), "double": True}, "linear")
    assert y["logits"].shape == (2, 3)


def test_arguments_by_the_name_of_an_option_go_into_a_dict() -> None:
    def model(samples: Any) -> Any:
        return 2 * samples

    with pytest.raises(TypeError, match=r"'samples' is an option of method 'hybrid'.*in a dict"):
        ua.propagate(model, method="hybrid", samples=noisy())
    y = ua.propagate(model, {"samples": noisy()}, "hybrid")
    torch.testing.assert_close(y.cov.var, torch.full((2, 4), 1.2))


def test_an_argument_is_given_once() -> None:
    with pytest.raises(TypeError, match="'pixel_values' is given twice"):
        ua.propagate(Image(), {"pixel_values": noisy()}, pixel_values=noisy())
    with pytest.raises(TypeError, match=r"needs a ua\.Gaussian"):
        ua.propagate(Image(), pixel_values=torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"needs a ua\.Gaussian"):
        ua.propagate(Image())


def test_compare_and_coverage_take_keywords() -> None:
    mask = torch.tensor([1.0, 0.5, 2.0])
    found = ua.compare(
        Image(), methods=["linear"], samples=100, repeats=1, pixel_values=noisy(), mask=mask
    )
    assert found.rows[0].failure is None or not found.rows[0].failure
    with pytest.raises(TypeError, match="no option 'sample'"):
        ua.compare(Image(), noisy(), sample=3)
    assert ua.coverage(Image(), pixel_values=noisy(), mask=mask).supported


def test_a_mapping_of_tensors_is_a_dict_of_arguments() -> None:
    y = ua.propagate(Image(), UserDict(pixel_values=noisy()), "linear")
    assert isinstance(y["logits"], ua.Gaussian)
    assert isinstance(y["logits"].loc, Tensor)


def test_objects_that_refer_to_each_other_are_looked_through_once() -> None:
    """An option that does not exist, and whose value holds no tensor, is found to be one."""
    web = [SimpleNamespace() for _ in range(30)]
    for node in web:
        node.all = web
    with pytest.raises(TypeError, match="no option 'web'"):
        ua.propagate(Image(), noisy(), "linear", web=web)
