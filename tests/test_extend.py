"""Rules from outside: for functions of torch, for one's own, and for whole modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import uaprop as ua
from uaprop import registry


@pytest.fixture(autouse=True)
def same_rules_afterwards():
    before = dict(registry.RULES)
    yield
    registry.RULES.clear()
    registry.RULES.update(before)


def own_scale(x: Tensor, factor: float = 2.0) -> Tensor:
    if not isinstance(x, Tensor):
        raise AssertionError("the rule was not asked")
    return x * factor


def other_scale(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        if not isinstance(x, Tensor):
            raise AssertionError("the rule was not asked")
        return x * self.factor + shift


@pytest.fixture
def x() -> ua.Gaussian:
    return ua.Gaussian(torch.tensor([[1.0, 2.0, 3.0]]), 0.5)


def linear(input, function, factor: float):
    return ua.kinds.Linear(
        (input,),
        affine=function,
        linear=lambda t: t * factor,
        squared=lambda v: v * factor**2,
    )


def test_a_function_of_ones_own(x: ua.Gaussian) -> None:
    @ua.rule(own_scale)
    def scale(x, factor=2.0):
        return linear(x, lambda t: own_scale(t, factor), factor)

    y = own_scale(x, factor=3.0)
    torch.testing.assert_close(y.loc, 3 * x.loc)
    torch.testing.assert_close(y.cov.var, 9 * x.cov.var)
    torch.testing.assert_close(own_scale(x.loc), 2 * x.loc)  # tensors go the old way
    for method in ("sketch", "hybrid", "adjoint"):
        y = ua.propagate(lambda x: own_scale(x), x, method=method)
        torch.testing.assert_close(y.cov.var, 4 * x.cov.var, rtol=1e-5, atol=0)


def test_a_module(x: ua.Gaussian) -> None:
    @ua.rule(Scaled)
    def scaled(self, x, shift=0.0):
        return linear(x, lambda t: t * self.factor + shift, self.factor)

    model = nn.Sequential(nn.Identity(), Scaled(3.0))
    y = model(x)
    torch.testing.assert_close(y.cov.var, 9 * x.cov.var)
    y = ua.propagate(model, x, method="sketch")
    torch.testing.assert_close(y.cov.var, 9 * x.cov.var)
    assert y.provenance.entrance == ""
    y = ua.propagate(model, x, method="hybrid")
    torch.testing.assert_close(y.cov.var, 9 * x.cov.var, rtol=1e-5, atol=0)
    torch.testing.assert_close(model(x.loc), 3 * x.loc)


def test_a_subclass_with_its_own_forward_is_another_module(x: ua.Gaussian) -> None:
    class Other(Scaled):
        def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
            return x - shift

    @ua.rule(Scaled)
    def scaled(self, x, shift=0.0):
        return x * self.factor + shift

    torch.testing.assert_close(Other(3.0)(x, shift=1.0).cov.var, x.cov.var)


def test_a_custom_operator(x: ua.Gaussian) -> None:
    @torch.library.custom_op("uaprop_tests::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    with pytest.raises(ua.UnsupportedOperation, match="uaprop_tests"):
        double(x)

    @ua.rule(double)
    def rule_of_double(x):
        return x * 2

    torch.testing.assert_close(double(x).cov.var, 4 * x.cov.var)


def test_a_rule_reaches_the_exported_operator_too() -> None:
    x, other = ua.Gaussian(torch.ones(3), 0.5), torch.arange(3.0)
    with pytest.raises(ua.UnsupportedOperation):
        torch.ops.aten.special_xlog1py.default(x, other)

    @ua.rule(torch.special.xlog1py)
    def xlog1py(input, other):
        return input * torch.log1p(other)

    y = torch.ops.aten.special_xlog1py.default(x, other)
    torch.testing.assert_close(y.cov.var, 0.5 * torch.log1p(other).square())


@pytest.mark.parametrize(
    ("operation", "function", "words"),
    [
        (torch.trace, lambda: None, "no 'input'"),
        (torch.trace, lambda input, extra: None, "nobody will give it 'extra'"),
        (other_scale, lambda x, faktor=2.0: None, "no 'factor'"),
        (torch.nn.functional.relu, lambda input: None, "no 'inplace'"),
        (Scaled, lambda self, x: None, "no 'shift'"),
        (Scaled, lambda x: None, "no 'x'|no 'shift'"),
    ],
)
def test_a_wrong_signature_is_refused_at_registration(operation, function, words: str) -> None:
    before = dict(registry.RULES)
    with pytest.raises(TypeError, match=words):
        ua.rule(operation)(function)
    assert before == registry.RULES


def test_a_function_without_a_name_cannot_be_reached() -> None:
    def local(x: Tensor) -> Tensor:
        return x

    with pytest.raises(TypeError, match="at the top of its module"):
        ua.rule(local)


@pytest.mark.parametrize("operations", [(), (3,), ("relu",)])
def test_a_rule_is_for_something_callable(operations) -> None:
    with pytest.raises(TypeError, match=r"@ua\.rule\(torch\.relu"):
        ua.rule(*operations)
