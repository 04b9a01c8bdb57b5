"""Products of matrices and tensors: sums over broadcast dimensions, chains, ignored operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import uaprop as ua

from .cases import constant
from .oracles import jacobian_std, unequal

METHODS = ["diagonal", "full", "sketch", "adjoint", "hybrid"]
OPTIONS: dict[str, dict[str, Any]] = {
    "sketch": {"probes": 256},
    "adjoint": {"probes": 256},
    "hybrid": {"samples": 256},
}
MATRIX, VECTOR = constant(4, 3), constant(4)
ROWS = constant(2, 3, seed=2)
CHAIN = [constant(2, 3, seed=4), constant(3, 2, seed=5), constant(2, 4, seed=6)]
NAN = float("nan")

Call = Callable[[Any], Any]

BROADCAST: dict[str, tuple[Call, tuple[int, ...]]] = {
    "tensordot": (lambda x: torch.tensordot(x, MATRIX, ([1], [0])), (2, 1)),
    "tensordot, negative": (lambda x: torch.tensordot(MATRIX, x, ([-2], [-1])), (2, 1)),
    "tensordot, both random": (lambda x: torch.tensordot(x[:, :1], x[:4, 1:], ([1], [0])), (5, 3)),
    "einsum": (lambda x: torch.einsum("ij,jk->ik", x, MATRIX), (2, 1)),
    "einsum, ellipsis": (lambda x: torch.einsum("...j,jk->...k", x, MATRIX), (2, 1)),
    "einsum, ellipsis between": (lambda x: torch.einsum("b...i,i->b...", x, VECTOR), (2, 3, 1)),
    "einsum, sum over the ellipsis": (lambda x: torch.einsum("...i,...i->i", x, ROWS), (1, 3)),
    "einsum, random ellipsis": (lambda x: torch.einsum("...i,...i->i", x[:1], x[1:]), (3, 3)),
}
CHAINS: dict[str, tuple[Call, tuple[int, ...]]] = {
    "first": (lambda x: torch.linalg.multi_dot([x, CHAIN[1], CHAIN[2]]), (3, 3)),
    "middle": (lambda x: torch.linalg.multi_dot([CHAIN[0], x, CHAIN[1]]), (3, 3)),
    "last": (lambda x: torch.linalg.multi_dot([CHAIN[0], CHAIN[1], x]), (2, 3)),
    "vector": (lambda x: torch.linalg.multi_dot([x, CHAIN[1], CHAIN[2]]), (3,)),
    "chain_matmul": (lambda x: torch.chain_matmul(CHAIN[0], x, CHAIN[1]), (3, 3)),
    "two random": (
        lambda x: torch.linalg.multi_dot([CHAIN[0], x[:3], CHAIN[1], x[3:5], CHAIN[1]]),
        (5, 3),
    ),
}


def check(call: Call, shape: tuple[int, ...], method: str, scale: float = 1e-4) -> None:
    """The standard deviations are those of the Jacobian, for noise so small that it decides."""
    x = unequal(constant(*shape, seed=9), scale)
    y = ua.propagate(call, x, method=method, **OPTIONS.get(method, {}))
    torch.testing.assert_close(y.loc, call(x.loc), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(y.std, jacobian_std(call, x), rtol=2e-3, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", BROADCAST)
def test_a_contracted_dimension_of_size_one_is_broadcast(name: str, method: str) -> None:
    check(*BROADCAST[name], method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_matrices_at_small_noise(name: str, method: str) -> None:
    check(*CHAINS[name], method)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_matrices_at_large_noise(name: str) -> None:
    call, shape = CHAINS[name]
    x = unequal(constant(*shape, seed=9))
    truth = ua.propagate(call, x, method="samples", samples=40_000)
    for method in ("diagonal", "full"):
        y = ua.propagate(call, x, method=method)
        assert (y.std / truth.std - 1).abs().max() < 0.03
        assert ((y.loc - truth.loc).abs() / truth.std).max() < 0.03


def test_a_chain_of_three_random_matrices_is_refused_where_elements_are_independent() -> None:
    def chain(x: Any) -> Any:
        return torch.linalg.multi_dot([x[:2], x[2:4], x[4:]])

    x = unequal(constant(6, 2, seed=3), 0.1)
    with pytest.raises(ua.UnsupportedOperation, match="3 random matrices"):
        ua.propagate(chain, x, method="diagonal")
    y = ua.propagate(chain, x, method="full")
    torch.testing.assert_close(y.std, jacobian_std(chain, x), rtol=0.1, atol=0)


def test_a_chain_of_a_matrix_with_itself_is_refused_where_elements_are_independent() -> None:
    x = unequal(constant(2, 2), 0.1)
    with pytest.raises(ua.UnsupportedOperation, match="with itself"):
        ua.propagate(
            lambda x: torch.linalg.multi_dot([x, CHAIN[1].mT[:, :2], x]), x, method="diagonal"
        )


def _ignoring(operation: Call, *operands: Tensor, shape: tuple[int, ...]) -> Call:
    ignored = torch.full(shape, NAN, dtype=torch.float64)
    return lambda x: operation(ignored, x, *operands, beta=0, alpha=2)


IGNORED: dict[str, tuple[Call, tuple[int, ...]]] = {
    "addmm": (_ignoring(torch.addmm, MATRIX.mT, shape=(2, 4)), (2, 3)),
    "addmv": (_ignoring(torch.addmv, VECTOR, shape=(2,)), (2, 4)),
    "addr": (_ignoring(torch.addr, VECTOR, shape=(3, 4)), (3,)),
    "baddbmm": (_ignoring(torch.baddbmm, MATRIX.mT.unsqueeze(0), shape=(1, 2, 4)), (1, 2, 3)),
    "addbmm": (_ignoring(torch.addbmm, MATRIX.mT.unsqueeze(0), shape=(2, 4)), (1, 2, 3)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", IGNORED)
def test_an_operand_with_beta_zero_is_ignored_even_where_it_is_nan(name: str, method: str) -> None:
    check(*IGNORED[name], method)


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch"])
def test_a_random_operand_with_beta_zero_adds_no_variance(method: str) -> None:
    x = unequal(constant(2, 2))
    left, right = constant(2, 3), constant(3, 2)
    y = ua.propagate(lambda x: torch.addmm(x, left, right, beta=0), x, method=method)
    torch.testing.assert_close(y.loc, left @ right)
    assert torch.count_nonzero(y.var) == 0
