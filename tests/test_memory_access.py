"""Operations that read memory by strides, or write to their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import uaprop as ua

from .cases import constant
from .oracles import brute_force, unequal

SOURCE = constant(2, 2, seed=4)
INDEX = torch.tensor([[1, 0, 1]])
LINEAR: dict[str, Callable[[Any], Any]] = {
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, SOURCE, (2, 2), (1, 2), 1),
    "as_strided": lambda x: torch.as_strided(x * 2, (2, 2), (1, 2), 1),
    "as_strided of part": lambda x: (x[1:] * 2).as_strided((2,), (2,)),
    "as_strided_copy": lambda x: torch.as_strided_copy(x * 2, (3, 2), (1, 2)),
}
METHODS = ["diagonal", "full", "sketch", "adjoint", "hybrid"]
OF_THE_INPUT: dict[str, Callable[[Any], Any]] = {
    "as_strided": lambda x: torch.as_strided(x, (2, 2), (1, 2), 1),
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, SOURCE, (2, 2), (1, 2), 1),
    "set_": lambda x: x.new_empty(0).set_(x.untyped_storage(), 0, (2, 2)) * 2,
}
EMBEDDINGS: dict[str, Callable[[Any], Any]] = {
    "embedding": lambda w: F.embedding(INDEX, w, max_norm=1.0),
    "embedding_bag": lambda w: F.embedding_bag(INDEX, w, max_norm=1.0, mode="sum"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LINEAR)
def test_strides_over_memory_find_their_elements(name: str, method: str) -> None:
    x = unequal(constant(2, 3))
    options = {"samples": 256} if method == "hybrid" else {}
    y = ua.propagate(LINEAR[name], x, method=method, **options)
    mean, var = brute_force(LINEAR[name], x)
    torch.testing.assert_close(y.loc, mean)
    torch.testing.assert_close(y.var, var, rtol=0.02, atol=1e-12)


@pytest.mark.parametrize("name", OF_THE_INPUT)
def test_strides_over_a_samples_memory_do_not_reach_another_sample(name: str) -> None:
    model = OF_THE_INPUT[name]
    x = unequal(constant(2, 3))
    y = ua.propagate(model, x, method="samples", samples=4000)
    noise = torch.randn(4000, 2, 3, generator=torch.Generator().manual_seed(1)).double()
    expected = torch.stack([model(x.loc + x.std * each) for each in noise])
    torch.testing.assert_close(y.std, expected.std(0), rtol=0.06, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_strides_over_a_views_memory_are_refused(method: str) -> None:
    x = unequal(constant(2, 3))
    for call in (
        lambda x: (x * 2).mT.as_strided((2, 2), (1, 2)),
        lambda x: (x * 2)[1:].as_strided((2,), (1,)),
        lambda x: torch.as_strided_scatter((x * 2).mT, SOURCE, (2, 2), (1, 2)),
    ):
        with pytest.raises(ua.UnsupportedOperation, match="shares its memory"):
            ua.propagate(call, x, method=method)


def test_what_is_written_to_a_strided_view_is_written_to_its_parent() -> None:
    x = unequal(constant(2, 3)) * 1
    before = x.var.clone()
    x.as_strided((2,), (2,), 1).mul_(3.0)
    factor = torch.tensor([[1.0, 3.0, 1.0], [3.0, 1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(x.var, before * factor.square())


@pytest.mark.parametrize("method", [*METHODS, "linear"])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_an_embedding_that_rescales_its_random_weights_is_refused(name: str, method: str) -> None:
    weight = unequal(constant(3, 4))
    before = weight.loc.clone()
    with pytest.raises(ua.UnsupportedOperation, match="max_norm"):
        ua.propagate(EMBEDDINGS[name], weight, method=method)
    torch.testing.assert_close(weight.loc, before, rtol=0, atol=0)


def test_an_embedding_that_rescales_constant_weights_is_none_of_our_business() -> None:
    weight = constant(3, 4)
    x = unequal(constant(1, 3, 4))

    def model(x: Any) -> Any:
        return x * F.embedding(INDEX, weight.clone(), max_norm=1.0)

    expected = F.embedding(INDEX, weight.clone(), max_norm=1.0).abs() * x.std
    for method in ("diagonal", "linear"):
        torch.testing.assert_close(ua.propagate(model, x, method=method).std, expected)


DERIVED: dict[str, Callable[[Any], Any]] = {
    "of the input": LINEAR["as_strided_scatter"],
    "of the source": lambda x: constant(3, 4).as_strided_scatter(x, (2, 3), (4, 1), 1),
    "of the source by name": lambda x: torch.as_strided_scatter(
        constant(3, 4), src=x, size=(2, 3), stride=(4, 1), storage_offset=1
    ),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_derivative_that_torch_has_wrong_is_refused(name: str) -> None:
    with pytest.raises(ua.UnsupportedOperation, match="derivative"):
        ua.propagate(DERIVED[name], unequal(constant(2, 3)), method="linear")
