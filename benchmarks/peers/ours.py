"""This library's methods, the report's by hand, and plain Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from networks import report_pass
from problems import Moments, Problem
from torch import Tensor, nn

import uaprop as ua

Run = Callable[[int], Moments]  # from a seed

DRAWS = (10, 30, 100)
PIECE = (
    25  # draws at once: the fastest of 5, 10, 20, 25, 50 and 100 for all three problems, or near it
)


def library(problem: Problem) -> dict[str, Run]:
    """This library's methods; their input is made beforehand."""
    model, x = asked(problem)
    calibration = ua.calibrate(model, asked(problem, problem.others)[1])

    def by(method: str, **options: Any) -> Run:
        seeds = method != "calibrated"
        return lambda seed: read(
            ua.propagate(model, x, method, **options, **({"seed": seed} if seeds else {}))
        )

    runs = {
        "uaprop, diagonal": lambda _: read(model(*x)),
        "uaprop, calibrated": by("calibrated", calibration=calibration),
        "uaprop, adjoint 16": by("adjoint", probes=16),
        "uaprop, hybrid 16": by("hybrid", samples=16),
        "uaprop, auto": by("auto"),
    }
    if problem.var is not None:
        factors = _factors(problem.mean, problem.var)
        runs["uaprop, a factor per pixel"] = lambda _: read(model(factors))
    return runs


def _factors(mean: Tensor, var: Tensor) -> ua.Gaussian:
    """The same input with one source of noise for each pixel, which the whole pass keeps apart."""
    factors = torch.diag_embed(var.sqrt().flatten(1)).movedim(-1, 0)
    return ua.Gaussian.from_factors(mean, factors.unflatten(2, mean.shape[1:]).contiguous())


def asked(
    problem: Problem, inputs: tuple[Tensor, Tensor | None] | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The problem as this library takes it: a callable and its arguments, Gaussians among them."""
    mean, var = inputs or (problem.mean, problem.var)
    if var is not None:
        return problem.model, (ua.Gaussian(mean, var),)
    weights = [ua.Gaussian(weight, std=std) for weight, std in problem.weights]
    return partial(_forward, problem.model), (mean, *weights)


def _forward(model: nn.Sequential, x: Any, *weights: Any) -> Any:
    """The model with its parameters as arguments: torch lets nothing but tensors be a parameter."""
    rest = iter(weights)
    for layer in model:
        x = F.linear(x, next(rest), next(rest)) if isinstance(layer, nn.Linear) else layer(x)
    return x


def read(answer: ua.Gaussian) -> Moments:
    return answer.mean, answer.var


def report(problem: Problem) -> dict[str, Run]:
    """The report's public way: two plain convolutions, activation formulas in eager mode.

    Raises:
        NotImplementedError: if the weights are random.
    """
    var = problem.var
    if var is None:
        raise NotImplementedError("its weights are numbers")
    return {"the report's, by hand": lambda _: report_pass(problem.model, problem.mean, var)}


def monte_carlo(problem: Problem) -> dict[str, Run]:
    """Plain forward passes on batches of draws."""

    def sampled(count: int) -> Moments:
        sizes = [min(PIECE, count - done) for done in range(0, count, PIECE)]
        draws = torch.cat([problem.draw(size) for size in sizes])
        return draws.mean(0), draws.var(0)

    return {f"Monte Carlo, {n} draws": lambda _, n=n: sampled(n) for n in DRAWS}
