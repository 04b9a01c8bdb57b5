r"""High-precision oracle for the Gaussian moments of elementwise functions.

For ``x ~ N(m, v)`` and an elementwise function ``f`` the oracle computes

    mean = E[f(x)],    gain = E[f'(x)],    var = Var[f(x)]

to at least 30 significant digits *relative* accuracy, in mpmath alone.  ``m`` and ``v`` are taken
as the exact binary values of the floats given.  ``f'`` is the almost-everywhere derivative; the
gain is ``None`` where it is undefined (``v = 0`` with ``m`` exactly on a kink).

Three schemes are used.

*Piecewise* functions are, on every interval ``(lo, hi)`` between kinks, a sum of terms
``c x^n e^{kx}`` (relu, clamp, hardswish, elu, exp, powers, ...).  With ``s = sqrt(v)``, ``phi`` and
``Phi`` the standard normal density and distribution function:

    E[x^n e^{kx}; lo < x < hi] = e^{km + k^2 v/2} M_n(m + kv)
    M_0(mu) = Phi(b) - Phi(a),            a = (lo - mu)/s,  b = (hi - mu)/s
    M_n(mu) = mu M_{n-1} + (n-1) v M_{n-2} + s (lo^{n-1} phi(a) - hi^{n-1} phi(b))

``d = f - f(m)`` is again such a function, and ``Var[f] = E[d^2] - E[d]^2``.  These forms cancel, so
they are evaluated with ever more digits until two successive precisions agree.

*Trigonometric* functions have the closed forms

    E[sin x] = e^{-v/2} sin m,    Var[sin x] = (1 - e^{-v}) (1 + e^{-v} cos 2m) / 2
    E[cos x] = e^{-v/2} cos m,    Var[cos x] = (1 - e^{-v}) (1 - e^{-v} cos 2m) / 2

*Smooth* functions (gelu, silu, mish, softplus, sigmoid, tanh, erf, ...) are analytic in a strip
around the real axis, where the trapezoidal rule converges geometrically in ``1/h``:

    E[g(x)] ~ h / (s sqrt(2 pi)) * sum_k g(m + kh) e^{-(kh/s)^2 / 2}

The sum is followed outwards from ``m`` until the terms vanish against the largest one, which finds
the tilted peaks of exponential tails on its own; ``h`` is halved until the moments stop changing.
Again ``Var[f] = E[d^2] - E[d]^2`` with ``d = f - f(m)``; saturating functions are reflected into
their left tail, where ``u = f - lower limit`` is known to full relative precision.  For a large
variance, most of the sum would run over points where ``u`` equals 0 or its right asymptote ``a(x)``
(``x`` or a constant); there the exact moments of ``a(x) Phi(x)`` and ``a(x)^2 Phi(x)`` are split
off, and only the remainder, which lives near the origin, is summed.

``python -m tests.oracle`` regenerates ``tests/data/oracle.json``, and ``python -m tests.oracle
--check 200`` compares random entries with an independent adaptive quadrature.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import time
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from mpmath import mp, mpf

Moments = tuple[mpf, "mpf | None", mpf]
Row = tuple[float, float, float, "float | None", float]

DATA = Path(__file__).parent / "data" / "oracle.json"

_MEANS = (0.0, 1e-3, 0.1, 0.5, 1.0, 2.0, 3.0, 8.0, 20.0, 30.0, 50.0)
MEANS = tuple(sorted({s * m + 0.0 for m in _MEANS for s in (-1.0, 1.0)}))
VARIANCES = (0.0, 1e-14, 1e-8, 1e-4, 1e-2, 0.1, 0.3, 1.0, 4.0, 25.0, 100.0, 1e3, 1e4)
DTYPES = ("float64", "float32")

NEGLIGIBLE = mpf(10) ** -330  # stored as zero: below the float64 subnormals


# ------------------------------------------------------------------------------------------------
# Piecewise sums of c x^n e^{kx}
# ------------------------------------------------------------------------------------------------

Terms = dict[tuple[int, mpf], mpf]  # (n, k) -> c
Piece = tuple[mpf, mpf, Terms]  # lo, hi, terms

_INF = mpf("inf")


def _terms(*terms: tuple[float, int, float]) -> Terms:
    """Terms from triples (c, n, k)."""
    return {(n, mpf(k)): mpf(c) for c, n, k in terms}


def _pieces(first: Terms, *rest: tuple[float, Terms]) -> list[Piece]:
    """Pieces from the leftmost terms, then (left end, terms) for every further piece."""
    ends = [-_INF, *(mpf(knot) for knot, _ in rest), _INF]
    bodies = [first, *(terms for _, terms in rest)]
    return list(zip(ends, ends[1:], bodies, strict=False))


def _clamp(lo: float | None, hi: float | None) -> list[Piece]:
    knots: list[tuple[float, Terms]] = []
    first = _terms((1, 1, 0))
    if lo is not None:
        first = _terms((lo, 0, 0))
        knots.append((lo, _terms((1, 1, 0))))
    if hi is not None:
        knots.append((hi, _terms((hi, 0, 0))))
    return _pieces(first, *knots)


def _leaky(slope: float) -> list[Piece]:
    return _pieces(_terms((slope, 1, 0)), (0, _terms((1, 1, 0))))


def _elu(alpha: float, rate: float = 1) -> list[Piece]:
    """``x`` on the right, ``alpha (e^{rate x} - 1)`` on the left."""
    return _pieces(_terms((alpha, 0, rate), (-alpha, 0, 0)), (0, _terms((1, 1, 0))))


def _power(n: int) -> list[Piece]:
    return _pieces(_terms((1, n, 0)))


# name -> (pieces, factor): the function is the product of both.  All numbers are exact: parameters
# such as 0.01 stand for their binary value, and a factor is a fraction.
_PIECEWISE: dict[str, tuple[list[Piece], Fraction]] = {
    "relu": (_clamp(0, None), Fraction(1)),
    "leaky_relu": (_leaky(0.01), Fraction(1)),
    "prelu": (_leaky(0.25), Fraction(1)),
    "abs": (_leaky(-1), Fraction(1)),
    "relu6": (_clamp(0, 6), Fraction(1)),
    "hardtanh": (_clamp(-1, 1), Fraction(1)),
    "clamp": (_clamp(-0.5, 2), Fraction(1)),
    "clamp_min": (_clamp(0.3, None), Fraction(1)),
    "clamp_max": (_clamp(None, 1.2), Fraction(1)),
    "hardsigmoid": (
        _pieces({}, (-3, _terms((1, 1, 0), (3, 0, 0))), (3, _terms((6, 0, 0)))),
        Fraction(1, 6),
    ),
    "hardswish": (
        _pieces({}, (-3, _terms((1, 2, 0), (3, 1, 0))), (3, _terms((6, 1, 0)))),
        Fraction(1, 6),
    ),
    "elu": (_elu(1), Fraction(1)),
    "elu2": (_elu(2), Fraction(1)),
    "selu": (_elu(1.6732632423543772), Fraction(1.0507009873554805)),
    "celu": (_elu(0.5, rate=2), Fraction(1)),
    "exp": (_pieces(_terms((1, 0, 1))), Fraction(1)),
    "expm1": (_pieces(_terms((1, 0, 1), (-1, 0, 0))), Fraction(1)),
    "sinh": (_pieces(_terms((0.5, 0, 1), (-0.5, 0, -1))), Fraction(1)),
    "cosh": (_pieces(_terms((0.5, 0, 1), (0.5, 0, -1))), Fraction(1)),
    "softshrink": (
        _pieces(_terms((1, 1, 0), (0.5, 0, 0)), (-0.5, {}), (0.5, _terms((1, 1, 0), (-0.5, 0, 0)))),
        Fraction(1),
    ),
    "square": (_power(2), Fraction(1)),
    "cube": (_power(3), Fraction(1)),
    "pow5": (_power(5), Fraction(1)),
}


def _plus(terms: Terms, c: mpf) -> Terms:
    return {**terms, (0, mpf(0)): terms.get((0, mpf(0)), mpf(0)) + c}


def _derivative(terms: Terms) -> Terms:
    out: Terms = {}
    for (n, k), c in terms.items():
        for key, value in (((n - 1, k), n * c), ((n, k), k * c)):
            if value:
                out[key] = out.get(key, mpf(0)) + value
    return out


def _squared(terms: Terms) -> Terms:
    out: Terms = {}
    for (n1, k1), c1 in terms.items():
        for (n2, k2), c2 in terms.items():
            key = (n1 + n2, k1 + k2)
            out[key] = out.get(key, mpf(0)) + c1 * c2
    return out


def _value(terms: Terms, x: mpf) -> mpf:
    return mp.fsum(c * x**n * mp.exp(k * x) for (n, k), c in terms.items())


def _truncated(n: int, mu: mpf, v: mpf, lo: mpf, hi: mpf) -> mpf:
    """``E[x^n; lo < x < hi]`` for ``x ~ N(mu, v)``."""
    s = mp.sqrt(v)
    a, b = (lo - mu) / s, (hi - mu) / s
    if a > 0:  # both ends in the right tail: reflect, for relative accuracy
        previous, current = mpf(0), _cdf(-a) - _cdf(-b)
    else:
        previous, current = mpf(0), _cdf(b) - _cdf(a)
    for i in range(1, n + 1):
        edge = mpf(0)
        if mp.isfinite(lo):
            edge += lo ** (i - 1) * _pdf(a)
        if mp.isfinite(hi):
            edge -= hi ** (i - 1) * _pdf(b)
        previous, current = current, mu * current + (i - 1) * v * previous + s * edge
    return current


def _pdf(z: mpf) -> mpf:
    return mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi)


def _cdf(z: mpf) -> mpf:
    if not mp.isfinite(z):
        return mpf(int(z > 0))
    return mp.erfc(-z / mp.sqrt(2)) / 2


def _expectation(terms: Terms, lo: mpf, hi: mpf, m: mpf, v: mpf) -> mpf:
    return mp.fsum(
        c * mp.exp(k * m + k * k * v / 2) * _truncated(n, m + k * v, v, lo, hi)
        for (n, k), c in terms.items()
        if c
    )


def _piecewise_moments(name: str, m: mpf, v: mpf) -> Moments:
    pieces, factor = _PIECEWISE[name]
    scale = mpf(factor.numerator) / factor.denominator
    centre = next(_value(terms, m) for _, hi, terms in pieces if m <= hi)
    if v == 0:
        slopes = {_value(_derivative(t), m) for lo, hi, t in pieces if lo <= m <= hi}
        return scale * centre, scale * slopes.pop() if len(slopes) == 1 else None, mpf(0)
    d1 = d2 = gain = mpf(0)
    for lo, hi, terms in pieces:
        shifted = _plus(terms, -centre)
        d1 += _expectation(shifted, lo, hi, m, v)
        d2 += _expectation(_squared(shifted), lo, hi, m, v)
        gain += _expectation(_derivative(terms), lo, hi, m, v)
    return scale * (centre + d1), scale * gain, scale**2 * (d2 - d1 * d1)


# ------------------------------------------------------------------------------------------------
# Trigonometric functions
# ------------------------------------------------------------------------------------------------


def _trigonometric_moments(name: str, m: mpf, v: mpf) -> Moments:
    damp = mp.exp(-v / 2)
    sin, cos = damp * mp.sin(m), damp * mp.cos(m)
    tilt = mp.exp(-v) * mp.cos(2 * m)
    half = -mp.expm1(-v) / 2
    if name == "sin":
        return sin, cos, half * (1 + tilt)
    return cos, -sin, half * (1 - tilt)


# ------------------------------------------------------------------------------------------------
# Smooth functions, by the trapezoidal rule
# ------------------------------------------------------------------------------------------------

# x -> u(x), f'(x) with u = f - lower limit, both with full relative precision for x -> -infinity
Jet = Callable[[mpf], tuple[mpf, mpf]]

_CUBIC = mpf(0.044715)


def _sigmoid(x: mpf) -> tuple[mpf, mpf]:
    """``s = 1/(1 + e^{-x})`` and ``s' = s (1 - s) = s^2 e^{-x}``."""
    e = mp.exp(-x)
    s = 1 / (1 + e)
    return s, s * s * e


def _tanh(x: mpf) -> tuple[mpf, mpf]:
    """``tanh x + 1 = 2 s(2x)``."""
    s, ds = _sigmoid(2 * x)
    return 2 * s, 4 * ds


def _erf(x: mpf) -> tuple[mpf, mpf]:
    """``erf x + 1 = erfc(-x)``."""
    return mp.erfc(-x), 2 / mp.sqrt(mp.pi) * mp.exp(-x * x)


def _softplus(x: mpf, beta: int = 1) -> tuple[mpf, mpf]:
    e = mp.exp(beta * x)
    return (mp.log1p(e) if e < 1 else mp.log(1 + e)) / beta, e / (1 + e)


def _softplus_beta(x: mpf) -> tuple[mpf, mpf]:
    return _softplus(x, 2)


def _silu(x: mpf) -> tuple[mpf, mpf]:
    s, ds = _sigmoid(x)
    return x * s, s + x * ds


def _mish(x: mpf) -> tuple[mpf, mpf]:
    """``tanh(softplus(x)) = n / (n + 2)`` with ``n = (1 + e^x)^2 - 1 = e^x (e^x + 2)``."""
    e = mp.exp(x)
    n = e * (e + 2)
    t = n / (n + 2)
    return x * t, t + 4 * x * e * (e + 1) / (n + 2) ** 2


def _gelu(x: mpf) -> tuple[mpf, mpf]:
    cdf = _cdf(x)
    return x * cdf, cdf + x * _pdf(x)


def _gelu_tanh(x: mpf) -> tuple[mpf, mpf]:
    """``x (1 + tanh y)/2 = x s(2y)`` with ``y = sqrt(2/pi) (x + 0.044715 x^3)``."""
    c = 2 * mp.sqrt(2 / mp.pi)
    x2 = _CUBIC * x * x
    s, ds = _sigmoid(c * x * (1 + x2))
    return x * s, s + x * ds * c * (1 + 3 * x2)


_SMOOTH: dict[str, Jet] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "mish": _mish,
    "softplus": _softplus,
    "softplus_beta": _softplus_beta,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "erf": _erf,
}
# (upper, lower) limits of the saturating functions; all of them obey f(x) + f(-x) = upper + lower.
_SATURATING: dict[str, tuple[int | None, int]] = {
    "sigmoid": (1, 0),
    "tanh": (1, -1),
    "erf": (1, -1),
}

_DIGITS = 60  # working precision of the sums
_CUT_BITS = 150  # terms below 2^-150 = 7e-46 of the largest one are left out
_TOLERANCE = mpf(10) ** -32  # last change of a moment when h is halved
_WIDE = 30  # variance from which on the asymptote is split off
_STEP = mpf("0.25")  # widest first step: all the strips are at least 3 pi / 4 wide but for
_NARROW = {"tanh": 2, "softplus_beta": 2}  # functions of 2x


def _asymptote_moments(limit: int | None, m: mpf, v: mpf) -> list[mpf]:
    """``E[a Phi]``, ``E[a' Phi]``, ``E[a^2 Phi]`` for the constant ``a = limit`` or ``a(x) = x``.

    With ``t = sqrt(1 + v)`` and ``z = m/t``:  ``E[Phi(x)] = Phi(z)``, ``E[phi(x)] = phi(z)/t``,
    ``E[x phi(x)] = m phi(z)/t^3``, and Stein's ``E[x g] = m E[g] + v E[g']``.
    """
    t = mp.sqrt(1 + v)
    step, bump = _cdf(m / t), _pdf(m / t) / t
    if limit is not None:
        return [limit * step, mpf(0), limit**2 * step]
    ramp = m * step + v * bump
    return [ramp, step, m * ramp + v * (step + m * bump / t**2)]


def _smooth_moments(name: str, m: mpf, v: mpf) -> Moments:
    upper, lower = _SATURATING.get(name, (None, 0))
    if upper is not None and m > 0:
        mean, gain, var = _smooth_moments(name, -m, v)
        return upper + lower - mean, gain, var
    jet = _SMOOTH[name]
    u_m, slope_m = jet(m)
    if v == 0:
        return u_m + lower, slope_m, mpf(0)
    wide = v > _WIDE
    centre = mpf(0) if wide else u_m
    start = mpf(0) if wide else m
    known = [mpf(0)] * 3
    if wide:
        known = _asymptote_moments(None if upper is None else upper - lower, m, v)
    s = mp.sqrt(v)
    step = min(mpf("0.45") * s, _STEP / _NARROW.get(name, 1))

    def term(x: mpf) -> list[mpf]:
        """Integrands of ``E[d]``, the gain and ``E[d^2]``, less the known parts."""
        u, slope = jet(x)
        d = u - centre
        values = [d, slope, d * d]
        if wide:
            cdf = _cdf(x)
            a = x if upper is None else upper - lower
            values = [d - a * cdf, slope - (cdf if upper is None else 0), d * d - a * a * cdf]
        w = mp.exp(-((x - m) ** 2) / (2 * v))
        return [w * value for value in values]

    def moments(h: mpf) -> Moments:
        density = h / mp.sqrt(2 * mp.pi * v)
        d1, gain, d2 = (k + density * t for k, t in zip(known, sums, strict=True))
        return _symmetrised(name, m, v, (centre + lower + d1, gain, d2 - d1 * d1))

    # The first level walks away from the start on either side until all the terms are negligible.
    sums = term(start)
    peaks = [mp.mag(t) for t in sums]
    ends = []
    for side in (1, -1):
        k, idle = 0, 0
        while idle < 4:
            k += side
            terms = term(start + k * step)
            sums = [a + t for a, t in zip(sums, terms, strict=True)]
            mags = [mp.mag(t) for t in terms]
            peaks = [max(pair) for pair in zip(peaks, mags, strict=True)]
            small = all(a <= p - _CUT_BITS for a, p in zip(mags, peaks, strict=True))
            idle = idle + 1 if small else 0
        ends.append(k)
    right, left = ends

    # Further levels add the midpoints.
    result = moments(step)
    for level in range(1, 8):
        h = step / 2**level
        for k in range(left * 2**level + 1, right * 2**level, 2):
            sums = [a + t for a, t in zip(sums, term(start + k * h), strict=True)]
        coarse, result = result, moments(h)
        if _agree(coarse, result, _TOLERANCE):
            return result
    raise ArithmeticError(f"no convergence: {name}({m}, {v})")


# ------------------------------------------------------------------------------------------------
# Public interface
# ------------------------------------------------------------------------------------------------

FUNCTIONS = (*_PIECEWISE, "sin", "cos", *_SMOOTH, "logsigmoid")

_ODD = {"hardtanh", "cube", "pow5", "sin", "tanh", "erf", "sinh", "softshrink"}
_EVEN = {"abs", "square", "cos", "cosh"}


def _agree(old: Moments, new: Moments, tolerance: mpf) -> bool:
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
    return all(abs(a - b) <= tolerance * abs(b) for a, b in pairs)


def _symmetrised(name: str, m: mpf, v: mpf, moments: Moments) -> Moments:
    """Exact zeros, which no relative criterion could settle.

    They are due to parity at ``m = 0``.  Besides, ``E[x s(x)] = 0`` for ``m = -v/2``, because
    ``s(x) = e^{x/2} / (2 cosh(x/2))`` and ``e^{x/2}`` shifts the density to the origin.
    """
    mean, gain, var = moments
    if (name in _ODD and m == 0) or (name == "silu" and m == -v / 2):
        mean = mpf(0)
    if name in _EVEN and m == 0 and gain is not None:
        gain = mpf(0)
    return mean, gain, var


def moments(name: str, m: float, v: float) -> Moments:
    """Mean, gain and variance of the function called ``name`` under ``N(m, v)``.

    ``v`` is the variance; both parameters are taken as exact binary floats.  All three results are
    correct to 30 significant digits or more; the gain is ``None`` for ``v = 0`` on a kink.
    """
    if name not in FUNCTIONS:
        raise KeyError(name)
    if v < 0:
        raise ValueError("negative variance")
    if name == "logsigmoid":  # -softplus(-x)
        mean, gain, var = moments("softplus", -m, v)
        return mp.fneg(mean, exact=True), gain, var
    if name in _SMOOTH:
        return _smooth(name, m, v)
    scheme = _piecewise_moments if name in _PIECEWISE else _trigonometric_moments
    previous = None
    for digits in (60, 120, 240, 480, 960, 1920):
        with mp.workdps(digits):
            current = _symmetrised(name, mpf(m), mpf(v), scheme(name, mpf(m), mpf(v)))
            if previous is not None and _agree(previous, current, mpf(10) ** -40):
                return current
        previous = current
    raise ArithmeticError(f"no convergence: {name}({m}, {v})")


@lru_cache(maxsize=4096)
def _smooth(name: str, m: float, v: float) -> Moments:
    with mp.workdps(_DIGITS):
        return _smooth_moments(name, mpf(m), mpf(v))


def load(dtype: str = "float64") -> dict[str, list[Row]]:
    """The stored table: for every function, rows ``(m, v, mean, gain, var)`` of floats.

    ``m`` and ``v`` are representable in ``dtype`` (all the values are float64).  Values beyond the
    float64 range are infinite, those below it zero; an undefined gain is ``None``.
    """
    table = json.loads(DATA.read_text(encoding="utf-8"))[dtype]
    points = [(m, v) for m in table["means"] for v in table["variances"]]
    return {
        name: [
            (m, v, float(mean), None if gain is None else float(gain), float(var))
            for (m, v), (mean, gain, var) in zip(points, rows, strict=True)
        ]
        for name, rows in table["values"].items()
    }


# ------------------------------------------------------------------------------------------------
# Generator
# ------------------------------------------------------------------------------------------------


def _rounded(x: float, dtype: str) -> float:
    return struct.unpack("f", struct.pack("f", x))[0] if dtype == "float32" else x


def _axes(dtype: str) -> tuple[list[float], list[float]]:
    return [_rounded(m, dtype) for m in MEANS], [_rounded(v, dtype) for v in VARIANCES]


def _text(x: mpf | None) -> str | None:
    if x is None:
        return None
    return "0.0" if abs(x) < NEGLIGIBLE else mp.nstr(x, 20)


Task = tuple[str, float, float]


def _solve(task: Task) -> tuple[Task, list[str | None]]:
    return task, [_text(x) for x in moments(*task)]


def generate(processes: int = 2) -> None:
    """Compute all the tables and write the data file."""
    points = {(m, v) for dtype in DTYPES for ms, vs in [_axes(dtype)] for m in ms for v in vs}
    # By variance, so that the cached weights are shared; the costliest (largest) first.
    ordered = sorted(points, key=lambda p: (-p[1], abs(p[0]), p[0]))
    tasks = [(name, m, v) for m, v in ordered for name in FUNCTIONS]
    solved: dict[Task, list[str | None]] = {}
    with Pool(processes) as pool:
        for task, values in pool.imap_unordered(_solve, tasks, chunksize=len(FUNCTIONS)):
            solved[task] = values
    document: dict[str, Any] = {}
    for dtype in DTYPES:
        means, variances = _axes(dtype)
        document[dtype] = {
            "means": means,
            "variances": variances,
            "values": {
                name: [solved[name, m, v] for m in means for v in variances] for name in FUNCTIONS
            },
        }
    DATA.parent.mkdir(exist_ok=True)
    text = json.dumps(document, separators=(",", ":"))
    # One line per function.
    text = text.replace(']],"', ']],\n"').replace('{"', '{\n"') + "\n"
    DATA.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------------------------
# Independent check
# ------------------------------------------------------------------------------------------------


def _definitions(lib: Any) -> dict[str, Callable[[Any], Any]]:
    """The functions spelled out as torch documents them; ``lib`` is ``mp`` or ``math``."""
    gate = lib.sqrt(2 / lib.pi)

    def clip(x: Any, lo: float, hi: float) -> Any:
        return min(max(x, lo), hi)

    def elu(x: Any, alpha: float) -> Any:
        return x if x > 0 else alpha * lib.expm1(x)

    def softplus(x: Any) -> Any:
        return max(x, 0) + lib.log1p(lib.exp(-abs(x)))

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + lib.exp(-x)) if x > 0 else lib.exp(x) / (1 + lib.exp(x))

    return {
        "relu": lambda x: max(x, 0),
        "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
        "prelu": lambda x: x if x > 0 else 0.25 * x,
        "abs": abs,
        "relu6": lambda x: clip(x, 0, 6),
        "hardtanh": lambda x: clip(x, -1, 1),
        "clamp": lambda x: clip(x, -0.5, 2),
        "clamp_min": lambda x: max(x, 0.3),
        "clamp_max": lambda x: min(x, 1.2),
        "hardsigmoid": lambda x: clip(x + 3, 0, 6) / 6,
        "hardswish": lambda x: x * clip(x + 3, 0, 6) / 6,
        "elu": lambda x: elu(x, 1),
        "elu2": lambda x: elu(x, 2),
        "selu": lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772),
        "celu": lambda x: elu(2 * x, 1) / 2,
        "exp": lib.exp,
        "expm1": lib.expm1,
        "sinh": lib.sinh,
        "cosh": lib.cosh,
        "softshrink": lambda x: x - clip(x, -0.5, 0.5),
        "square": lambda x: x * x,
        "cube": lambda x: x**3,
        "pow5": lambda x: x**5,
        "sin": lib.sin,
        "cos": lib.cos,
        "gelu": lambda x: x / 2 * lib.erfc(-x / lib.sqrt(2)),
        "gelu_tanh": lambda x: x * sigmoid(2 * gate * (x + 0.044715 * x**3)),
        "silu": lambda x: x * sigmoid(x),
        "mish": lambda x: x * lib.tanh(softplus(x)),
        "softplus": softplus,
        "softplus_beta": lambda x: softplus(2 * x) / 2,
        "sigmoid": sigmoid,
        "tanh": lib.tanh,
        "erf": lib.erf,
        "logsigmoid": lambda x: -softplus(-x),
    }


_KINKS = (-3, -1, -0.5, 0, 0.3, 0.5, 1, 1.2, 2, 3, 6)


def reference(name: str, m: float, v: float) -> Moments:
    """The moments by adaptive quadrature from the definitions, for ``v > 0``; slow.

    The gain comes from Stein's identity ``E[f'] = Cov(x, f) / v``, which needs no derivative.
    """
    mu, s = mpf(m), mp.sqrt(v)
    f = _definitions(mp)[name]
    centre = f(mu)
    lo, hi = mu - 17 * s, mu + 17 * s
    if m < 0 and s > mpf("0.4"):  # right tails of a tilted density reach the origin
        hi = max(hi, 17 * s)
    if m > 0 and s > mpf("0.4"):
        lo = min(lo, -17 * s)
    if name == "exp":
        hi += 2 * mpf(v)
    count = int(mp.ceil((hi - lo) / (mpf("1.9") * s)))
    knots = {lo + (hi - lo) * i / count for i in range(count + 1)}
    knots |= {mpf(k) for k in _KINKS} | {sign * mpf(3) ** i for sign in (-1, 1) for i in range(7)}
    cuts = sorted(x for x in knots if lo <= x <= hi)

    def expectation(g: Callable[[mpf], mpf]) -> mpf:
        return mp.quad(
            lambda x: g(x) * mp.exp(-((x - mu) ** 2) / (2 * mpf(v))) / (s * mp.sqrt(2 * mp.pi)),
            cuts,
            method="gauss-legendre",
        )

    shift = expectation(lambda x: f(x) - centre)
    gain = expectation(lambda x: (f(x) - centre) * (x - mu)) / v
    return expectation(f), gain, expectation(lambda x: (f(x) - centre - shift) ** 2)


def check(count: int, seed: int) -> mpf:
    """Compare random entries with ``reference``; the largest relative difference above 1e-40."""
    rng = random.Random(seed)
    worst = mpf(0)
    for _ in range(count):
        name = rng.choice(FUNCTIONS)
        m, v = rng.choice(MEANS), rng.choice(VARIANCES[1:])
        exact = moments(name, m, v)
        with mp.workdps(2 * _DIGITS):
            other = _symmetrised(name, mpf(m), mpf(v), reference(name, m, v))
            for label, a, b in zip(("mean", "gain", "var"), exact, other, strict=True):
                if max(abs(a), abs(b)) < mpf(10) ** -40:
                    continue
                error = abs(a - b) / abs(a)
                worst = max(worst, error)
                if error > mpf(10) ** -30:
                    print(f"{name}({m}, {v}) {label}: {mp.nstr(a, 20)}, error {mp.nstr(error, 3)}")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description="Regenerate or check the oracle's table.")
    parser.add_argument("--check", type=int, metavar="COUNT", help="check random entries instead")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    if args.check:
        print(f"largest relative difference {mp.nstr(check(args.check, args.seed), 3)}")
    else:
        generate()
        print(f"{DATA.stat().st_size} bytes")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
