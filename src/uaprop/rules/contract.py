"""Products of matrices and vectors, and what they share with convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Bilinear, Linear, Random, plain
from ..numerics.constants import derived
from ..numerics.precision import reduced, rounded
from ..registry import rule

T = torch.Tensor


def product(
    function: Callable[[Any, Any, Any], Any],
    left: Any,
    right: Any,
    offset: Any = None,
) -> Any:
    """``function(left, right, offset)``, bilinear in the first two with coefficients 0 and 1.

    With one constant operand it is a linear map whose coefficients are that operand's elements, so its
    squared map is the same with the operand squared.

    Returns:
        A linear or a bilinear kind; the plain value if neither operand is random.
    """
    if isinstance(left, Random):
        if isinstance(right, Random):
            return Bilinear(
                (left, right),
                affine=lambda x, y: function(x, y, offset),
                product=lambda x, y: function(x, y, None),
            )
        return Linear(
            (left,),
            affine=lambda x: function(x, right, offset),
            linear=lambda x: function(x, right, None),
            squared=lambda v: squared(function, v, right),
        )
    if isinstance(right, Random):
        return Linear(
            (right,),
            affine=lambda y: function(left, y, offset),
            linear=lambda y: function(left, y, None),
            squared=lambda v: squared(function, v, left, flipped=True),
        )
    return function(left, right, offset)


def squared(
    function: Callable[..., Any], var: Tensor, factor: Any, flipped: bool = False
) -> Tensor:
    """The map with its constant operand squared; float16 would lose squares below 6e-8."""
    dtype, low = var.dtype, reduced(var)
    if low is None and dtype != torch.float16:
        factor = derived(square, factor) if isinstance(factor, Tensor) else factor**2
        return function(factor, var, None) if flipped else function(var, factor, None)
    if low is not None:
        var = rounded(var, low)
    elif dtype == torch.float16:
        var = var.float()
    factor = derived(square, factor, numbers=(low,)) if isinstance(factor, Tensor) else factor**2
    result: Tensor = function(factor, var, None) if flipped else function(var, factor, None)
    return result.to(dtype) if low is None else rounded(result, low).to(dtype)


def square(factor: Tensor, low: torch.dtype | None = None) -> Tensor:
    """A weight squared, in float32 if it is in half precision or to be rounded."""
    if low is not None:
        return rounded(factor * factor, low)
    factor = factor.float() if factor.dtype == torch.float16 else factor
    return factor * factor


def scaled_by(input: Random, factor: Any) -> Linear:
    """``input · factor`` elementwise; the variance is multiplied twice, as a square can overflow."""
    return Linear(
        (input,),
        affine=lambda x: x * factor,
        linear=lambda x: x * factor,
        squared=lambda v: v * factor * factor,
    )


@rule(torch.matmul, torch.linalg.matmul)
def matmul(input: Any, other: Any) -> Any:
    return product(lambda x, y, _: torch.matmul(x, y), input, other)


@rule(T.matmul)
def matmul_method(self: Any, other: Any) -> Any:
    # Dynamo hands over W @ x and x @ W in the same way. Where only one fits the shapes, that is the one.
    if torch.compiler.is_compiling() and not isinstance(self, Random) and isinstance(other, Random):
        reflected = other.shape[-1] == self.shape[-2 if self.ndim > 1 else 0]
        if reflected and self.shape[-1] == other.shape[-2 if other.ndim > 1 else 0]:
            raise UnsupportedOperation(
                "",
                reason="torch.compile does not tell W @ x from x @ W if x is a Gaussian",
                remedy="Write torch.matmul(W, x) or torch.matmul(x, W).",
            )
        if reflected:
            return matmul(other, self)
    return matmul(self, other)


@rule(torch.mm, T.mm)
def mm(input: Any, mat2: Any) -> Any:
    return product(lambda x, y, _: torch.mm(x, y), input, mat2)


@rule(torch.bmm, T.bmm)
def bmm(input: Any, mat2: Any) -> Any:
    return product(lambda x, y, _: torch.bmm(x, y), input, mat2)


def _weighted_sum(beta: float, input: Any, alpha: float, product: Any) -> Any:
    """``beta · input + alpha · product``; with ``beta = 0`` the input is ignored, even where it is NaN."""
    scaled = alpha * product
    if beta != 0:
        return beta * input + scaled
    if isinstance(scaled, Random) or not isinstance(input, Random):
        return scaled
    return Linear(  # the input alone is random, and has no weight
        (input,),
        affine=lambda _: scaled,
        linear=lambda _: torch.zeros_like(scaled),
        squared=lambda _: torch.zeros_like(scaled),
    )


@rule(torch.addmm, T.addmm)
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _weighted_sum(beta, input, alpha, torch.mm(mat1, mat2))


@rule(torch.baddbmm, T.baddbmm)
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _weighted_sum(beta, input, alpha, torch.bmm(batch1, batch2))


@rule(torch.mv, T.mv)
def mv(input: Any, vec: Any) -> Any:
    return product(lambda x, y, _: torch.mv(x, y), input, vec)


@rule(torch.dot, T.dot)
def dot(input: Any, tensor: Any) -> Any:
    if input is tensor:
        return torch.sum(torch.square(input))
    return product(lambda x, y, _: torch.dot(x, y), input, tensor)


@rule(torch.inner, T.inner)
def inner(input: Any, other: Any) -> Any:
    return product(lambda x, y, _: torch.inner(x, y), input, other)


@rule(torch.outer, T.outer, torch.ger, T.ger)
def outer(input: Any, vec2: Any) -> Any:
    return product(lambda x, y, _: torch.outer(x, y), input, vec2)


@rule(torch.tensordot)
def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    left, right = _contracted(a, b, dims)
    for i, j in zip(left, right, strict=True):
        a, b = without_broadcast(a, i, b, j)
    return product(lambda x, y, _: torch.tensordot(x, y, (left, right)), a, b)


def _contracted(a: Any, b: Any, dims: Any) -> tuple[list[int], list[int]]:
    """The dimensions that ``torch.tensordot`` sums over, of each operand."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        return list(range(a.ndim - dims, a.ndim)), list(range(dims))
    left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
    return [d % a.ndim for d in left], [d % b.ndim for d in right]


def without_broadcast(a: Any, i: int, b: Any, j: int) -> tuple[Any, Any]:
    """Operands of a sum over dimension ``i`` of one and ``j`` of the other, of the same size there.

    A dimension of size 1 is repeated by torch: ``Σ_j a b_j = a Σ_j b_j``, and the sum comes first, so that
    its terms do not share ``a``.

    Returns:
        Both operands, the sum in the place of one where the other has size 1.
    """
    if a.shape[i] == 1 != b.shape[j]:
        return a, torch.sum(b, j, keepdim=True)
    if b.shape[j] == 1 != a.shape[i]:
        return torch.sum(a, i, keepdim=True), b
    return a, b


@rule(torch.addmv, T.addmv)
def addmv(input: Any, mat: Any, vec: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _weighted_sum(beta, input, alpha, torch.mv(mat, vec))


@rule(torch.addr, T.addr)
def addr(input: Any, vec1: Any, vec2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _weighted_sum(beta, input, alpha, torch.outer(vec1, vec2))


@rule(torch.addbmm, T.addbmm)
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _weighted_sum(beta, input, alpha, torch.bmm(batch1, batch2).sum(0))


@rule(torch.addcmul, T.addcmul)
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    return input + value * (tensor1 * tensor2)


@rule(torch.addcdiv, T.addcdiv)
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    return input + value * (tensor1 / tensor2)


@rule(torch.lerp, T.lerp)
def lerp(input: Any, end: Any, weight: Any) -> Any:
    if input is end:
        return input
    if isinstance(weight, Random):
        return mixture(weight, end, input)
    return input * (1 - weight) + end * weight


def mixture(z: Any, a: Any, b: Any) -> Any:
    """``z a + (1-z) b`` in terms that are uncorrelated if ``z``, ``a`` and ``b`` are independent.

    ``z (a - m_a) + (1-z) (b - m_b) + z (m_a - m_b) + m_b``; in ``z a + (1-z) b`` both share ``z``.

    Returns:
        The mixture.
    """
    m_a, m_b = plain(a), plain(b)
    mixed = z * (m_a - m_b) + m_b
    if isinstance(a, Random):
        mixed = mixed + z * (a - m_a)
    return mixed + (1 - z) * (b - m_b) if isinstance(b, Random) else mixed


@rule(F.bilinear)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    equation = "...i,kij,...j->...k"
    if not (isinstance(input1, Random) and isinstance(input2, Random)):
        result: Any = torch.einsum(equation, input1, weight, input2)
    elif isinstance(weight, Random):
        raise UnsupportedOperation("", reason="it multiplies three random operands")
    else:  # terms that are uncorrelated if both are independent
        (m_1, m_2), (x_1, x_2) = (plain(input1), plain(input2)), (input1, input2)
        both = torch.einsum("...i,kij->...kj", x_1 - m_1, weight)
        result = torch.einsum(equation, x_1, weight, m_2)
        result = result + torch.einsum(equation, m_1, weight, x_2 - m_2)
        result = result + torch.matmul(both, (x_2 - m_2).unsqueeze(-1)).squeeze(-1)
    return result if bias is None else result + bias
