"""Every rule, over the table of cases."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

import uaprop as ua
from uaprop.registry import all_rules

from .cases import CASES, ELSEWHERE, FOREIGN, Case
from .oracles import brute_force, random_input, z_scores
from .versions import IS_CURRENT

# What torch.vmap cannot vectorise, and Monte Carlo draws one by one.
SLOW = {"lstm", "gru", "rnn_relu", "lstm_cell", "gru_cell", "bilinear"}

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def of_kind(*kinds: str) -> Any:
    chosen = [case for case in CASES if case.kind in kinds]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


def test_every_rule_has_a_case() -> None:
    rules = {entry.name for _, entry in all_rules()} - FOREIGN
    covered = {case.rule for case in CASES} | ELSEWHERE
    assert rules <= covered, f"rules without a case in tests/cases: {sorted(rules - covered)}"
    assert covered <= rules, f"cases without a rule: {sorted(covered - rules)}"


@of_kind("linear")
def test_linear_maps_are_exact(case: Case) -> None:
    x = random_input(case.shape)
    y = case.call(x.clone())
    mean, var = brute_force(case.call, x)
    assert y.shape == mean.shape
    low = 1e-2 if case.rule in ("half", "bfloat16") else 1e-5 if case.rule == "float" else 1e-12
    torch.testing.assert_close(y.loc, mean, rtol=low, atol=low)
    torch.testing.assert_close(y.cov.var, var, rtol=low, atol=low)


@of_kind("elementwise", "bilinear", "noise")
def test_moments_agree_with_monte_carlo(case: Case) -> None:
    x = random_input(case.shape)
    y = case.call(x)
    z_mean, z_var = z_scores(case.call, x, y.loc, y.cov.var)
    assert z_mean < 4.5, f"mean is {z_mean:.1f} standard errors off"
    assert z_var < 4.5, f"variance is {z_var:.1f} standard errors off"


@of_kind("joint")
def test_vector_functions_are_close_to_monte_carlo(case: Case) -> None:
    x = random_input(case.shape)
    y = case.call(x)
    count = 15_000 if case.rule in SLOW else 60_000
    truth = ua.propagate(case.call, x, method="samples", samples=count)
    floor = 4 / (2 * count) ** 0.5
    std_error = (y.std / truth.std - 1).abs().max()
    mean_error = ((y.loc - truth.loc).abs() / truth.std).max()
    assert std_error < case.tolerance + floor
    assert mean_error < case.tolerance + 4 / count**0.5


@every_case
def test_zero_variance_is_torch_exactly(case: Case) -> None:
    if case.kind == "noise":
        pytest.skip("the operation adds noise of its own")
    mean = random_input(case.shape).loc
    y = case.call(ua.Gaussian(mean.clone(), 0.0))
    plain = case.call(mean.clone())
    exact = case.rule not in ("einsum", "addmm", "baddbmm", "pow", "matmul", "conv2d", "linear")
    # the reflected method of torch multiplies by a reciprocal
    tolerance = 0.0 if exact and not case.rounds and case.label != "method" else 1e-14
    torch.testing.assert_close(y.loc, plain, rtol=tolerance, atol=tolerance)
    assert y.cov.var.shape == plain.shape
    assert torch.count_nonzero(y.cov.var) == 0


@every_case
def test_gradients(case: Case) -> None:
    if case.rule in ("detach", "detach_copy", "float", "half", "bfloat16"):
        pytest.skip("the operation cuts gradients or their digits")
    if case.rule == "narrow_copy" and not IS_CURRENT:
        pytest.skip("torch has no derivative of it")
    x = random_input(case.shape)
    mean = x.loc.clone().requires_grad_()
    var = x.cov.var.clone().requires_grad_()

    def run(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = case.call(ua.Gaussian(m, v))
        return y.loc, y.cov.var

    assert torch.autograd.gradcheck(run, (mean, var), fast_mode=True)


@every_case
def test_gradients_at_zero_variance_are_finite(case: Case) -> None:
    if case.rule == "narrow_copy" and not IS_CURRENT:
        pytest.skip("torch has no derivative of it")
    mean = random_input(case.shape).loc.clone().requires_grad_()
    var = torch.zeros(case.shape, dtype=torch.float64, requires_grad=True)
    y = case.call(ua.Gaussian(mean, var))
    if not y.requires_grad:
        assert case.rule in ("detach", "detach_copy") or case.label in ("all", "zero", "itself")
        return
    (y.loc.sum() + y.cov.var.sum() + y.std.sum()).backward()
    for leaf in (mean, var):
        assert leaf.grad is None or torch.isfinite(leaf.grad).all()


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_smaller_dtypes_follow_float64(case: Case, dtype: torch.dtype) -> None:
    if case.rule in ("double", "type_as", "to", "float", "half", "bfloat16"):
        pytest.skip("the operation sets the dtype")
    if dtype != torch.float32 and (
        case.rule in ("interpolate", "avg_pool3d", "lp_pool3d", "grid_sample")
        or "conv" in case.rule
        or case.rule.endswith("_aa")
        or (case.rule == "trace" and not IS_CURRENT)
    ):
        pytest.skip("torch has no such kernel for every dtype on a CPU, or rounds within it")
    x = random_input(case.shape)
    small = ua.Gaussian(x.loc.to(dtype), x.cov.var.to(dtype))
    y = case.call(small)
    reference = case.call(ua.Gaussian(small.loc.double(), small.cov.var.double()))
    assert y.dtype == dtype
    assert y.cov.var.dtype == dtype
    low = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    torch.testing.assert_close(y.loc.double(), reference.loc.double(), rtol=low, atol=low)
    torch.testing.assert_close(y.cov.var.double(), reference.cov.var.double(), rtol=low, atol=low)


def test_rules_take_torchs_argument_names() -> None:
    """A keyword that torch's own function has must be one that the rule has."""
    for operation, entry in all_rules():
        try:
            torch_names = list(inspect.signature(operation).parameters)
        except (TypeError, ValueError):
            continue  # builtins have no signature; the cases call them
        parameters = inspect.signature(entry.function).parameters
        if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values()):
            continue
        if "args" in torch_names or "__" in operation.__name__:
            continue  # torch's dispatcher between two functions; operators
        assert set(torch_names) <= set(parameters), f"{entry.name}: {torch_names}"
