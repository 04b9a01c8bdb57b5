"""Unknown operations are refused loudly, with the place and the remedy."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import uaprop as ua


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logdet(x)


@pytest.fixture
def x() -> ua.Gaussian:
    return ua.Gaussian(torch.randn(2, 3, 4, 4), 1.0)


def test_message_names_operation_module_and_remedy(x: ua.Gaussian) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Identity(), Unknown()))
    with pytest.raises(ua.UnsupportedOperation) as caught:
        model(x)
    message = str(caught.value)
    assert "torch.logdet" in message
    assert "'1.1 (Unknown)'" in message
    assert "@ua.rule" in message
    assert 'method="samples"' in message
    assert caught.value.operation == "torch.logdet"
    assert caught.value.module == "1.1 (Unknown)"


def test_outside_of_a_module_there_is_no_place(x: ua.Gaussian) -> None:
    with pytest.raises(ua.UnsupportedOperation) as caught:
        torch.argsort(x)
    assert caught.value.module == ""
    assert " in module" not in str(caught.value)


def test_error_survives_pickling(x: ua.Gaussian) -> None:
    error = ua.UnsupportedOperation("op", reason="because", remedy="Do it.", module="a.b")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "op in module 'a.b': because. Do it."


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: 1 / x, "three standard deviations away from zero"),
        (lambda x: x**0.5, "what is positive"),
        (lambda x: x**-1, "away from zero"),
        (lambda x: x**x, "exponent is random"),
        (lambda x: torch.div(x, 2, rounding_mode="floor"), "not linear"),
        (lambda x: nn.MaxPool2d(2, return_indices=True)(x)[1] + 1, "index of a maximum"),
        (lambda x: F.max_pool1d_with_indices(x[0], 2)[1] + 1, "index of a maximum"),
        (lambda x: x[x], "index is random"),
        (lambda x: torch.where(x, x, x), "condition is random"),
        (lambda x: x.masked_fill(x, 0.0), "mask is random"),
        (lambda x: F.alpha_dropout(x, training=True), "noise in training mode"),
        (lambda x: torch.einsum("abcd,abcd,abcd->a", x, x, x), "Split it"),
        (lambda x: x @ x, "same random tensor"),
        (lambda x: torch.add(x, 1, out=torch.empty(1)), "does not know these arguments"),
        (lambda x: x.numpy(), "random, but not Gaussian"),
        (lambda x: x.tolist(), "Decide on"),
        (lambda x: x.argmax(1), "Decide on"),
        (lambda x: x == 0, "torch.eq"),
        (lambda x: x != x, "torch.ne"),
        (lambda x: x < 0, "torch.lt"),
        (lambda x: F.cross_entropy(x, torch.zeros(2, 4, 4).long()), "cross_entropy"),
    ],
)
def test_no_answer_without_a_right_variance(call, words: str, x: ua.Gaussian) -> None:
    with pytest.raises(ua.UnsupportedOperation, match=words):
        call(x)


def test_torch_errors_pass_through(x: ua.Gaussian) -> None:
    with pytest.raises(RuntimeError, match=r"shape|size"):
        x.view(7)
    with pytest.raises(RuntimeError, match="channels"):
        F.conv2d(x, torch.zeros(1, 2, 3, 3))
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(x, 1.5)
    with pytest.raises(ValueError, match="at least one"):
        x.clamp()
    with pytest.raises(ValueError, match="give the dimension"):
        F.softmax(x)
    with pytest.raises(ValueError, match="names 2 operands"):
        torch.einsum("a,b->ab", x)


def test_different_covariances_do_not_mix() -> None:
    x = ua.Gaussian(torch.randn(3), 1.0)
    sampled = ua.propagate(nn.Identity(), x, method="samples", samples=10)
    with pytest.raises(ua.UnsupportedOperation, match="Finished"):
        x + sampled
    with pytest.raises(ua.UnsupportedOperation, match="in common with each other"):
        torch.relu(sampled)


def test_users_add_rules_as_the_library_does() -> None:
    def swapped(input: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        if torch.overrides.has_torch_function_unary(input):
            return torch.overrides.handle_torch_function(swapped, (input,), input, factor=factor)
        return input.flip(0) * factor

    x = ua.Gaussian(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    with pytest.raises(ua.UnsupportedOperation, match="swapped"):
        swapped(x)

    @ua.rule(swapped)
    def swapped_rule(input: ua.Gaussian, factor: float = 2.0) -> ua.kinds.Linear:
        return ua.kinds.Linear(
            (input,),
            affine=lambda t: swapped(t, factor),
            linear=lambda t: swapped(t, factor),
            squared=lambda v: swapped(v, factor**2),
        )

    from uaprop import registry

    try:
        y = swapped(x, 3.0)
        assert y.mean.tolist() == [6, 3]
        assert y.var.tolist() == [36, 9]
    finally:
        registry.RULES.pop(swapped)
    with pytest.raises(TypeError, match="needs the operations"):
        ua.rule()
    with pytest.raises(TypeError, match="needs the operations"):
        ua.rule("relu")  # type: ignore[arg-type]
