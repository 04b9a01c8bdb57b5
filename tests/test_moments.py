"""Scalar moments against an independent high-precision oracle, and over the whole finite range."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from torch import Tensor

from uaprop.numerics import (
    clipped,
    elementary,
    elu,
    gelu,
    hardswish,
    logistic,
    mish,
    rectified,
    shrinkage,
)
from uaprop.numerics.moments import Moments
from uaprop.numerics.normal import scaled_partial_moments, upper_partial_moments
from uaprop.numerics.quadrature import hermite, legendre

from . import oracle

SELU = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Moments]] = {
    "relu": rectified.relu,
    "leaky_relu": functools.partial(rectified.leaky, negative_slope=0.01),
    "prelu": lambda m, v: rectified.leaky(m, v, torch.tensor(0.25, dtype=m.dtype)),
    "abs": rectified.absolute,
    "relu6": functools.partial(clipped.clamp, low=0.0, high=6.0),
    "hardtanh": functools.partial(clipped.clamp, low=-1.0, high=1.0),
    "clamp": functools.partial(clipped.clamp, low=-0.5, high=2.0),
    "clamp_min": functools.partial(rectified.clamp_min, bound=0.3),
    "clamp_max": functools.partial(rectified.clamp_max, bound=1.2),
    "hardsigmoid": clipped.hardsigmoid,
    "hardswish": hardswish.hardswish,
    "elu": functools.partial(elu.elu, a=1.0, b=1.0),
    "elu2": functools.partial(elu.elu, a=2.0, b=1.0),
    "selu": functools.partial(elu.elu, a=SELU[0] * SELU[1], b=SELU[0]),
    "celu": functools.partial(elu.elu, a=0.5, b=1.0, scale=2.0),
    "gelu": gelu.gelu,
    "gelu_tanh": gelu.gelu_tanh,
    "silu": logistic.silu,
    "mish": mish.mish,
    "softplus": logistic.softplus,
    "softplus_beta": functools.partial(logistic.softplus, beta=2.0),
    "sigmoid": logistic.sigmoid,
    "tanh": logistic.tanh,
    "logsigmoid": logistic.logsigmoid,
    "exp": elementary.exp,
    "expm1": elementary.expm1,
    "sinh": elementary.sinh,
    "cosh": elementary.cosh,
    "softshrink": functools.partial(shrinkage.softshrink, width=0.5),
    "square": functools.partial(elementary.power, exponent=2),
    "cube": functools.partial(elementary.power, exponent=3),
    "pow5": functools.partial(elementary.power, exponent=5),
    "sin": elementary.sin,
    "cos": elementary.cos,
    "erf": elementary.erf,
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


@functools.cache
def table(dtype: str) -> dict[str, list[tuple[float, float, float, float | None, float]]]:
    return oracle.load(dtype)


def test_every_function_has_an_oracle() -> None:
    assert set(FUNCTIONS) == set(oracle.FUNCTIONS)
    means = {0.0} | {s * m for s in (1, -1) for m in (1e-3, 0.5, 1.0, 3.0, 8.0, 50.0)}
    variances = {0.0, 1e-8, 1e-2, 1.0, 25.0, 1e4}
    for rows in table("float64").values():
        assert {(m, v) for m in means for v in variances} <= {row[:2] for row in rows}


@every_function
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_moments_agree_with_the_oracle(name: str, dtype: str, tolerance: float) -> None:
    """Relative accuracy wherever the truth exceeds 1e-30.

    Two exceptions: at zero variance the mean is torch's own result, which is tested elsewhere and
    which in GELU's tail has fewer digits; and SELU is made such that its mean at N(0, 1) is zero up
    to the rounding of its constants.
    """
    rows = table(dtype)[name]
    kind = getattr(torch, dtype)
    mean = torch.tensor([row[0] for row in rows], dtype=kind)
    var = torch.tensor([row[1] for row in rows], dtype=kind)
    result = FUNCTIONS[name](mean, var)
    largest = torch.finfo(kind).max
    compared = 0
    for column, values in zip((2, 3, 4), result, strict=True):
        for row, value in zip(rows, values.tolist(), strict=True):
            truth = row[column]
            if truth is None or abs(truth) <= 1e-30:
                continue
            if column == 2 and (row[1] == 0 or (name == "selu" and row[:2] == (0.0, 1.0))):
                continue
            where = f"{result._fields[column - 2]} at {row[:2]}: {value} instead of {truth}"
            if abs(truth) > largest:
                assert value == math.copysign(math.inf, truth), where
            else:
                assert abs(value - truth) <= tolerance * abs(truth), where
            compared += 1
    assert compared > 300


@every_function
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_is_nan_or_negative_on_the_grid(name: str, dtype: torch.dtype) -> None:
    rows = table(str(dtype).removeprefix("torch."))[name]
    mean = torch.tensor([row[0] for row in rows], dtype=dtype)
    var = torch.tensor([row[1] for row in rows], dtype=dtype)
    result = FUNCTIONS[name](mean, var)
    assert not any(t.isnan().any() for t in result)
    assert (result.var >= 0).all()


FINITE = st.floats(allow_nan=False, allow_infinity=False)
FINITE32 = st.floats(allow_nan=False, allow_infinity=False, width=32)


USUAL = st.tuples(st.floats(-100, 100), st.floats(-40, 12).map(math.exp))


def points(pair: st.SearchStrategy[tuple[float, float]]) -> st.SearchStrategy[list]:
    """Many points at once: a call on twenty costs hardly more than one on one."""
    return st.lists(pair, min_size=1, max_size=20)


@every_function
@settings(max_examples=40)
@given(points=points(st.tuples(FINITE, FINITE.map(abs))))
def test_whole_range_float64(name: str, points: list) -> None:
    _check_points(name, points, torch.float64)


@every_function
@settings(max_examples=40)
@given(points=points(st.tuples(FINITE32, FINITE32.map(abs))))
def test_whole_range_float32(name: str, points: list) -> None:
    _check_points(name, points, torch.float32)


@every_function
@settings(max_examples=40)
@given(points=points(USUAL))
def test_usual_range(name: str, points: list) -> None:
    _check_points(name, points, torch.float64)


def _check_points(name: str, points: list[tuple[float, float]], dtype: torch.dtype) -> None:
    mean, var = torch.tensor(points, dtype=dtype).unbind(1)
    result = FUNCTIONS[name](mean, var)
    assert not any(t.isnan().any() for t in result), result
    assert (result.var >= 0).all()
    if name not in (
        "exp",
        "expm1",
        "sinh",
        "cosh",
        "square",
        "cube",
        "pow5",
        "selu",
    ):  # these overflow as the truth does
        assert all(t.isfinite().all() for t in (result.mean, result.gain)), result


@every_function
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_in_float32(name: str, dtype: torch.dtype) -> None:
    mean = torch.linspace(-4, 4, 33).to(dtype)
    var = torch.linspace(0.01, 2, 33).to(dtype)
    result = FUNCTIONS[name](mean, var)
    reference = FUNCTIONS[name](mean.float(), var.float())
    for value, wide in zip(result, reference, strict=True):
        assert value.dtype == dtype
        assert torch.equal(value, wide.to(dtype))


@every_function
def test_gain_is_the_derivative_of_the_mean(name: str) -> None:
    """Bonnet's theorem: E[f'] = ∂E[f]/∂mean, by autograd through the formulas."""
    mean = torch.linspace(-6, 6, 41, dtype=torch.float64).requires_grad_()
    for std in (1e-2, 0.3, 0.9, 3.0):
        var = torch.full_like(mean, std**2)
        result = FUNCTIONS[name](mean, var)
        (slope,) = torch.autograd.grad(result.mean.sum(), mean)
        torch.testing.assert_close(slope, result.gain.detach(), rtol=1e-6, atol=1e-9)


@every_function
def test_both_ways_of_choosing_a_formula_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced programs compute every formula and select; eager ones compute what is needed."""
    mean = torch.linspace(-9, 9, 61, dtype=torch.float64).repeat(5).requires_grad_()
    var = torch.tensor([0.0, 1e-8, 0.1, 2.0, 300.0], dtype=torch.float64).repeat_interleave(61)
    var = var.requires_grad_()
    eager = FUNCTIONS[name](mean, var)
    eager_grads = torch.autograd.grad(eager.mean.sum() + eager.var.sum(), (mean, var))
    monkeypatch.setattr("uaprop.numerics.moments._lazily", lambda *tensors: False)
    traced = FUNCTIONS[name](mean, var)
    traced_grads = torch.autograd.grad(traced.mean.sum() + traced.var.sum(), (mean, var))
    for a, b in zip((*eager, *eager_grads), (*traced, *traced_grads), strict=True):
        assert torch.isfinite(b).all()
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-300)


@every_function
def test_few_elements_among_many_of_another_region(name: str) -> None:
    """A formula that gets nearly all elements gets all: values, gradients and broadcast variances stay."""
    function = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(4, 60, generator=generator, dtype=torch.float64)
    for usual, rare in ((0.01, 30.0), (30.0, 0.01)):
        var = torch.full((60,), usual, dtype=torch.float64)
        var[17] = rare
        given = [t.clone().requires_grad_() for t in (mean, var)]
        found = function(*given)
        slopes = torch.autograd.grad(sum(t.sum() for t in found), given)
        single = [mean.clone().requires_grad_(), var.clone().requires_grad_()]
        columns = [function(single[0][:, i], single[1][i].expand(4)) for i in range(60)]
        apart = [torch.stack(parts, 1) for parts in zip(*columns, strict=True)]
        expected = torch.autograd.grad(sum(t.sum() for t in apart), single)
        torch.testing.assert_close(list(found), apart, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(slopes, expected, rtol=1e-9, atol=1e-12)


def test_oracle_table_is_reproducible() -> None:
    """Random entries of the stored table, computed again by mpmath."""
    rng = random.Random(0)
    for name in rng.sample(sorted(FUNCTIONS), 8):
        m, v, mean, gain, var = rng.choice(table("float64")[name])
        again = oracle.moments(name, m, v)
        for stored, fresh in zip((mean, gain, var), again, strict=True):
            if stored is None:
                assert fresh is None
            elif math.isfinite(stored):
                assert abs(stored - float(fresh)) <= 1e-14 * abs(stored)


def test_partial_moments_against_mpmath() -> None:
    """The recurrence that cancels, in arithmetic with digits to spare."""
    points = [0.0, 0.3, 1.0, 2.2, 2.3, 2.9, 3.99, 4.01, 6.0, 10.0, 30.0]
    for dtype, tolerance in ((torch.float64, 5e-11), (torch.float32, 1e-4)):
        plain = upper_partial_moments(torch.tensor(points, dtype=dtype), 4)
        scaled = scaled_partial_moments(torch.tensor(points, dtype=dtype), 4)
        for i, point in enumerate(points):
            with mp.workdps(60):
                t = mp.mpf(float(torch.tensor(point, dtype=dtype)))
                density = mp.npdf(t)
                exact = [mp.erfc(t / mp.sqrt(2)) / 2 / density]
                exact.append(1 - t * exact[0])
                for n in range(1, 4):
                    exact.append(n * exact[n - 1] - t * exact[n])
            for n in range(5):
                assert abs(float(scaled[n][i]) / float(exact[n]) - 1) < tolerance
                if exact[n] * density > 1e-30:
                    assert abs(float(plain[n][i]) / float(exact[n] * density) - 1) < tolerance


def test_quadrature_rules_integrate_polynomials() -> None:
    for count in (5, 20, 40):
        for degree in range(0, 2 * count, 2):
            exact = math.prod(range(1, degree, 2))
            value = sum(w * x**degree for x, w in hermite(count))
            assert math.isclose(value, exact, rel_tol=1e-9)
        for degree in range(2 * count):
            value = sum(w * x**degree for x, w in legendre(count))
            assert math.isclose(value, 1 / (degree + 1), rel_tol=1e-11)


# Monahan & Stefanski (1992): the logistic function as a mixture of eight probits, to 3e-9.
PROBITS = torch.tensor(
    [
        (0.00324634272134, 1.36534080629635),
        (0.05151747703334, 1.05952397101650),
        (0.19507791267858, 0.83079131376577),
        (0.31556982363282, 0.65073216665639),
        (0.27414957615842, 0.50813542536650),
        (0.13107688069541, 0.39631334516634),
        (0.02791241872797, 0.30890425226799),
        (0.00144956780535, 0.23821261640710),
    ],
    dtype=torch.float64,
)


def test_logistic_family_agrees_with_eight_probits() -> None:
    """E[s] = Σ pΦ(sm/q), E[s'] = Σ p(s/q)φ(sm/q), E[softplus] = Σ p[mΦ + (q/s)φ], Var by s² = s - s'."""
    mean = torch.linspace(-9, 9, 37, dtype=torch.float64).repeat(6)
    var = torch.tensor([1e-4, 0.1, 1.0, 9.0, 100.0, 1e4]).double().repeat_interleave(37)
    p, s = PROBITS.unbind(1)
    q = (1 + s * s * var[:, None]).sqrt()
    h = s * mean[:, None] / q
    cdf, pdf = torch.special.ndtr(h), torch.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    first, slope = cdf @ p, (s / q * pdf) @ p
    ours = logistic.sigmoid(mean, var)
    torch.testing.assert_close(ours.mean, first, rtol=0, atol=4e-9)
    torch.testing.assert_close(ours.gain, slope, rtol=0, atol=2e-8)
    torch.testing.assert_close(ours.var, first - slope - first.square(), rtol=0, atol=3e-8)
    soft = (mean[:, None] * cdf + q / s * pdf) @ p
    torch.testing.assert_close(logistic.softplus(mean, var).mean, soft, rtol=1e-8, atol=4e-8)


@pytest.mark.parametrize("outputs", ["all", "pair"])
def test_gradients_of_gradients_and_extremes(outputs: str) -> None:
    """The closed form against finite differences, twice; and finite wherever the moments are."""
    relu = rectified.relu if outputs == "all" else rectified.relu.marginal
    mean = torch.linspace(-6, 6, 25, dtype=torch.float64).requires_grad_()
    var = torch.linspace(0.1, 3, 25, dtype=torch.float64).requires_grad_()
    for function in (relu, lambda m, v: rectified.leaky(m, v, 0.2)):
        assert torch.autograd.gradcheck(lambda m, v, f=function: tuple(f(m, v)), (mean, var))
        assert torch.autograd.gradgradcheck(lambda m, v, f=function: tuple(f(m, v)), (mean, var))
    size = torch.logspace(-30, 15, 46)
    wild, wide = torch.meshgrid(
        torch.cat([-size, size]), torch.cat([torch.zeros(1), size]), indexing="ij"
    )
    wild, wide = (t.clone().requires_grad_() for t in (wild, wide))
    sum(t.sum() for t in relu(wild, wide)).backward()
    assert wild.grad.isfinite().all()
