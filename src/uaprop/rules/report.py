"""The report's approximation of the sigmoid, as an operation of its own."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from ..kinds import Elementwise, Random
from ..numerics import report
from ..registry import rule

__all__ = ["report_sigmoid"]


def report_sigmoid(input: Any, lam: float = report.LAMBDA) -> Any:
    """The sigmoid; on a Gaussian with the report's approximate moments."""
    if has_torch_function_unary(input):
        return handle_torch_function(report_sigmoid, (input,), input, lam=lam)
    return torch.sigmoid(input)


@rule(report_sigmoid, exact=False, source="the report, eq. 22-23; Daunizeau (2017)")
def sigmoid_of_the_report(input: Random, lam: float = report.LAMBDA) -> Elementwise:
    return Elementwise((input,), functools.partial(report.sigmoid, lam=lam))
