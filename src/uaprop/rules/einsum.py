"""``einsum``, with one random operand or two."""

from __future__ import annotations

import string
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperation
from ..kinds import Linear, Random
from ..registry import rule
from .contract import product


@rule(torch.einsum)
def einsum(equation: Any, *operands: Any) -> Any:
    if not isinstance(equation, str):
        raise UnsupportedOperation(
            "", reason="its sublist form has no rule", remedy="Write the equation as a string."
        )
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    terms, output = _spelled_out(*_parse(equation, len(operands)), operands)
    pairs = _without_broadcast_labels(list(zip(terms, operands, strict=True)))
    random = [(t, o) for t, o in pairs if isinstance(o, Random)]
    constant = [(t, o) for t, o in pairs if not isinstance(o, Random)]
    if len(random) == 1:
        return _einsum_linear(*random[0], constant, output)
    if len(random) == 2 and not constant:
        return _einsum_bilinear(random, output)
    raise UnsupportedOperation(
        "",
        reason=f"'{equation}' multiplies {len(random)} random operands and {len(constant)} constants",
        remedy="Split it into products of two operands.",
    )


def _spelled_out(
    terms: list[list[str]], output: list[str], operands: tuple[Any, ...]
) -> tuple[list[list[str]], list[str]]:
    """The same labels with one for each dimension that an ellipsis stands for, counted from the last."""
    used = {label for term in (*terms, output) for label in term}
    free = [letter for letter in string.ascii_letters if letter not in used]
    counts = [
        operand.ndim - len(term) + 1 if "..." in term else 0
        for term, operand in zip(terms, operands, strict=True)
    ]
    longest = max(counts, default=0)

    def spelled(term: list[str], count: int) -> list[str]:
        if "..." not in term:
            return term
        place = term.index("...")
        return [*term[:place], *free[longest - count : longest], *term[place + 1 :]]

    found = [spelled(term, count) for term, count in zip(terms, counts, strict=True)]
    return found, spelled(output, longest)


def _without_broadcast_labels(pairs: list[tuple[list[str], Any]]) -> list[tuple[list[str], Any]]:
    """Drop a label of size 1 that has another size elsewhere: torch broadcasts it there."""
    sizes: dict[str, int] = {}
    for term, operand in pairs:
        for label, size in zip(term, operand.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    kept = []
    for term, operand in pairs:
        for dim in reversed(range(len(term))):
            if operand.shape[dim] == 1 < sizes[term[dim]]:
                operand = operand.squeeze(dim)
                term = [*term[:dim], *term[dim + 1 :]]
        kept.append((term, operand))
    return kept


def _parse(equation: str, count: int) -> tuple[list[list[str]], list[str]]:
    """Labels of every operand and of the output; an ellipsis is one label."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = [_labels(term) for term in inputs.split(",")]
    if len(terms) != count:
        raise ValueError(f"einsum: '{equation}' names {len(terms)} operands, {count} were given")
    if arrow:
        return terms, _labels(output)
    flat = [label for term in terms for label in term]
    single = sorted(label for label in set(flat) if flat.count(label) == 1 and label != "...")
    return terms, (["..."] if "..." in flat else []) + single


def _labels(term: str) -> list[str]:
    return list(term.replace("...", ".")) if "..." not in term else _with_ellipsis(term)


def _with_ellipsis(term: str) -> list[str]:
    before, _, after = term.partition("...")
    return [*before, "...", *after]


def _join(*terms: list[str], to: list[str]) -> str:
    return ",".join("".join(term) for term in terms) + "->" + "".join(to)


def _einsum_linear(
    term: list[str], input: Random, constants: list[tuple[list[str], Tensor]], output: list[str]
) -> Any:
    if not constants:
        equation = _join(term, to=output)

        def apply(x: Tensor) -> Tensor:
            return torch.einsum(equation, x)

        return Linear((input,), affine=apply, linear=apply, squared=apply)
    # One coefficient per pair of input and output element: contract the constants to that first.
    labels = [label for names, _ in constants for label in names]
    kept = sorted({label for label in labels if label in term or label in output})
    factor = torch.einsum(_join(*(t for t, _ in constants), to=kept), *(c for _, c in constants))
    equation = _join(term, kept, to=output)
    return product(lambda x, c, _: torch.einsum(equation, x, c), input, factor)


def _einsum_bilinear(random: list[tuple[list[str], Any]], output: list[str]) -> Any:
    # A label that only one operand has is summed first: its terms share the other operand.
    (left, x), (right, y) = random
    left_kept = [label for label in dict.fromkeys(left) if label in right or label in output]
    right_kept = [label for label in dict.fromkeys(right) if label in left or label in output]
    if left_kept != left:
        x = torch.einsum(_join(left, to=left_kept), x)
    if right_kept != right:
        y = torch.einsum(_join(right, to=right_kept), y)
    equation = _join(left_kept, right_kept, to=output)
    return product(lambda a, b, _: torch.einsum(equation, a, b), x, y)
