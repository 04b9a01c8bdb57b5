"""Compiled moments: the same numbers as without a compiler, made once, found again, refused quietly."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import uaprop as ua
from uaprop.numerics import compiled, logistic, maximum, rectified, stacked, steady

TOLERANCE = {"rtol": 3e-5, "atol": 1e-37}  # the exponential's own rounding, far out in the tail


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def afresh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process, with a cache that these tests share."""
    monkeypatch.setenv("UAPROP_CACHE", str(folder))
    for name, value in (("_loaded", {}), ("_work", {}), ("_failed", False)):
        monkeypatch.setattr(compiled, name, value)
    with ua.fused(None):
        yield


def points(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances from tiny to huge, and no variance at all."""
    size = torch.logspace(-30, 15, 46, dtype=torch.float64)
    mean = torch.cat([-size, torch.zeros(1), size, torch.linspace(-20, 20, 81)])
    var = torch.cat([torch.zeros(1), size])
    return tuple(t.to(dtype) for t in torch.meshgrid(mean, var, indexing="ij"))  # type: ignore[return-value]


def no_compiler(*_: Any) -> None:
    raise RuntimeError("there is no compiler")


@pytest.mark.parametrize("relu", [rectified.relu, rectified.relu.marginal], ids=["all", "pair"])
def test_relu_and_its_gradient_agree_within_rounding(relu: Any) -> None:
    mean, var = points()
    weights = torch.randn(3, *mean.shape, generator=torch.Generator().manual_seed(0))

    def run() -> list[torch.Tensor]:
        m, v = mean.clone().requires_grad_(), var.clone().requires_grad_()
        result = relu(m, v)
        sum((w * t).sum() for w, t in zip(weights, result, strict=False)).backward()
        with torch.no_grad():
            values = relu(mean, var)
        return [*(t.detach() for t in result), *values, m.grad, v.grad]

    with ua.fused(False):
        plain = run()
    assert not compiled._loaded
    with ua.fused(True):
        fast = run()
    assert len(compiled._loaded) == (2 if relu is rectified.relu else 3)
    for a, b in zip(fast, plain, strict=True):
        assert not a.isnan().any()
        torch.testing.assert_close(a, b, **TOLERANCE)


def test_compiled_once_and_found_by_the_next_process(folder: Path) -> None:
    """Which does not even import the compiler."""
    with ua.fused(True):
        mean, var = points()
        expected = rectified.relu(mean, var).var.sum()
    code = """
        import sys, torch
        from uaprop.numerics import compiled, rectified
        torch.set_num_threads(1)
        size = torch.logspace(-30, 15, 46, dtype=torch.float64)
        mean = torch.cat([-size, torch.zeros(1), size, torch.linspace(-20, 20, 81)]).float()
        var = torch.cat([torch.zeros(1), size]).float()
        mean, var = torch.meshgrid(mean, var, indexing="ij")
        print(float(rectified.relu(mean, var).var.sum()))
        assert len(compiled._loaded) == 1
        assert "torch._inductor" not in sys.modules
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "UAPROP_CACHE": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not found.stderr
    assert float(found.stdout) == pytest.approx(float(expected), rel=1e-5)


def test_compiling_waits_until_it_pays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built: list[str] = []
    monkeypatch.setenv("UAPROP_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_PAYS", 1000)
    monkeypatch.setattr(compiled, "_build", lambda name, *_: (built.append(name), no_compiler()))
    x = torch.ones(400)
    for _ in range(3):
        rectified.relu(x, x)
        assert not built
    rectified.relu(x, x)
    assert built == ["rectified.relu-float32-vv"]


def test_a_missing_compiler_is_told_once_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(compiled.log, "handlers", [handler])
    monkeypatch.setenv("UAPROP_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_build", no_compiler)
    mean, var = points()
    with ua.fused(False):
        plain = rectified.relu(mean, var)
    with ua.fused(True):
        for _ in range(3):
            found = rectified.relu(mean, var)
    assert told == ["uaprop: moments run without a compiler: there is no compiler"]
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


def test_the_switch_holds_inside_and_goes_back() -> None:
    ua.fused(False)
    assert compiled.program(rectified._relu, torch.float32, "vv") is None
    with ua.fused(True):
        assert compiled.fused.mode is True
        with ua.fused(False):
            assert compiled.fused.mode is False
        assert compiled.fused.mode is True
    assert compiled.fused.mode is False


def test_the_larger_of_two_and_layouts() -> None:
    """Channels last stays so, transposed and broadcast inputs are what they are."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 3, 5, 4, generator=generator) for _ in range(2))
    last = {"memory_format": torch.channels_last}
    cases = [
        ((a, b.abs()), (b, a.abs())),
        ((a.to(**last), b.abs().to(**last)), (b.to(**last), a.abs())),
        ((a.mT, b.abs().mT), (b.mT.contiguous(), a.abs().mT)),
        ((a[:1, :1].expand(2, 3, 5, 4), b.abs()), (b, a.abs())),
    ]
    for first, second in cases:
        with ua.fused(False):
            plain = maximum.larger(first, second)
        with ua.fused(True):
            fast = maximum.larger(first, second)
        for x, y in zip(fast, plain, strict=True):
            torch.testing.assert_close(x, y)
            if first[0].is_contiguous(**last):
                assert x.is_contiguous(**last)
    with ua.fused(True):
        relu = rectified.relu(a.to(**last), b.abs())
        assert all(t.is_contiguous(**last) for t in relu)
        empty = rectified.relu(a[:0], b[:0])
        assert all(t.shape == (0, 3, 5, 4) for t in empty)


def test_stacks_of_factors() -> None:
    generator = torch.Generator().manual_seed(0)
    stack = torch.randn(6, 2, 3, 40, generator=generator)
    partners = torch.tensor([3, 4, 5, 0, 1, 2])
    gain, scale = torch.rand(2, 2, 3, 40, generator=generator)
    product = stack * stack[partners]
    expected = [
        stack.square().sum(0),
        product.square().sum(0),
        gain * stack + scale * product,
    ]
    for mode in (False, True):
        with ua.fused(mode):
            found = [
                *stacked.squares(stack, partners),
                stacked.combined(stack, partners, gain, scale),
            ]
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", ["silu", "sigmoid"])
def test_quadratures_agree_within_rounding(name: str) -> None:
    """Noise up to the function's own scale; beyond it nothing is compiled."""
    function = getattr(logistic, name)
    mean = torch.linspace(-30, 30, 61).repeat_interleave(25)
    var = torch.logspace(-8, 2, 25).repeat(61)
    with ua.fused(False):
        plain = function(mean, var)
    with ua.fused(True):
        fast = function(mean, var)
        assert len(compiled._loaded) == 1
        slope = torch.func.grad(lambda m: function(m, var).mean.sum())(mean)  # not compiled
    torch.testing.assert_close(slope, plain.gain, rtol=1e-4, atol=1e-30)
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("last", [False, True])
def test_statistics_of_many_elements(last: bool) -> None:
    """Normalisation in training, forwards and backwards; channels last have no rows to loop over."""
    generator = torch.Generator().manual_seed(0)
    layout = {"memory_format": torch.channels_last if last else torch.contiguous_format}
    mean, var, *weights = torch.randn(4, 8, 3, 16, 16, generator=generator)
    mean, var = (3 + 2 * mean).contiguous(**layout), var.abs().contiguous(**layout)
    scale, shift = torch.rand(2, 3, generator=generator)

    def run() -> list[torch.Tensor]:
        given = [t.clone().requires_grad_() for t in (mean, var, scale, shift)]
        with torch.no_grad():
            known = steady.statistics(mean, var)
        found = steady.normalised(*given[:2], known, *given[2:], 1e-5)
        total = sum((w * t).sum() for w, t in zip(weights, found, strict=True))
        return [*known[1:], *(t.detach() for t in found), *torch.autograd.grad(total, given)]

    with ua.fused(False):
        plain = run()
    assert not compiled._loaded
    with ua.fused(True):
        fast = run()
    assert len(compiled._loaded) == (0 if last else 5)
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))


def test_compiled_inside_an_operator() -> None:
    """Where nothing can be traced: max-pooling in a graph of torch.compile."""
    module = ua.as_module(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)).eval())
    mean, var = torch.randn(2, 1, 9, 9), torch.rand(2, 1, 9, 9)
    with torch.no_grad(), ua.fused(False):
        expected = module(mean, var)
    with torch.no_grad(), ua.fused(True):
        found = torch.compile(module, fullgraph=True, backend="aot_eager")(mean, var)
    assert not compiled._failed
    assert len(compiled._loaded) == 1  # the larger of two; the rest is the graph's
    torch.testing.assert_close(found, expected)


def test_nothing_compiled_where_values_are_not_to_be_had() -> None:
    """Under vmap, in forward mode, while a graph is captured: the formula itself."""
    x = torch.linspace(-2, 2, 8)
    with ua.fused(True):
        expected = rectified.relu(x, x.abs()).mean
        mapped = torch.func.vmap(lambda m: rectified.relu(m, m.abs()).mean)(x)
        torch.testing.assert_close(mapped, expected)
        graph = torch.fx.experimental.proxy_tensor.make_fx(
            lambda m: rectified.relu(m, m.abs()).mean
        )(x)
        torch.testing.assert_close(graph(2 * x), rectified.relu(2 * x, 2 * x.abs()).mean)
        either = torch.fx.experimental.proxy_tensor.make_fx(
            lambda m: maximum.larger((m, m.abs()), (-m, m.abs()))[0]
        )(x)
        twice = (2 * x, 2 * x.abs())
        torch.testing.assert_close(either(2 * x), maximum.larger(twice, (-twice[0], twice[1]))[0])
        slope = torch.func.jvp(lambda m: rectified.relu(m, x.abs()).mean, (x,), (torch.ones(8),))[1]
        torch.testing.assert_close(slope, rectified.relu(x, x.abs()).gain)
