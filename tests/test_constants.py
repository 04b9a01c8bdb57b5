"""What is kept of frozen weights follows them, and variances in bfloat16 stay close."""

from __future__ import annotations

import platform
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import uaprop as ua
from uaprop.numerics import constants
from uaprop.numerics.constants import Constants, derived
from uaprop.numerics.precision import is_native, reduced, variances_in


def doubled(weight: torch.Tensor | None, factor: float = 2.0) -> torch.Tensor:
    assert weight is not None
    return weight * factor


def network() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU()
    ).eval()
    model[1].running_var.uniform_(0.5, 2)
    model[1].running_mean.normal_()
    return model


@pytest.fixture
def x() -> ua.Gaussian:
    return ua.Gaussian(torch.randn(3, 2, 8, 8), 0.3)


def test_computed_once_while_nothing_changes() -> None:
    calls: list[int] = []

    def counted(weight: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return weight.square()

    weight = torch.randn(4)
    with Constants() as kept:
        first, second = derived(counted, weight), derived(counted, weight)
        assert first is second
        assert len(kept) == 1
    assert len(calls) == 1
    derived(counted, weight)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.mul_(3),
        lambda w: setattr(w, "data", torch.randn(4)),
        lambda w: w.copy_(torch.randn(4)),
    ],
    ids=["in place", "replaced", "copied into"],
)
def test_follows_its_weight(change: Any) -> None:
    weight = torch.randn(4)
    with Constants():
        derived(doubled, weight)
        change(weight)
        torch.testing.assert_close(derived(doubled, weight), 2 * weight)


def test_other_numbers_are_another_constant_and_a_dead_weight_is_forgotten() -> None:
    weight = torch.ones(3)
    with Constants() as kept:
        assert derived(doubled, weight, numbers=(3.0,)).sum() == 9
        assert derived(doubled, weight, numbers=(5.0,)).sum() == 15
        assert len(kept) == 2
        del weight
        assert len(kept) == 0


def test_not_kept_where_a_derivative_is_wanted_nor_in_other_threads() -> None:
    weight = torch.ones(3, requires_grad=True)
    with Constants() as kept:
        derived(doubled, weight).sum().backward()
        assert weight.grad is not None
        assert len(kept) == 0
        with torch.no_grad():
            derived(doubled, weight)
        assert len(kept) == 1
        other = threading.Thread(target=lambda: derived(doubled, torch.ones(2)))
        other.start()
        other.join()
        assert len(kept) == 1


def test_a_pass_with_kept_constants_is_the_same_and_follows_training(x: ua.Gaussian) -> None:
    model = network()
    kept = Constants()
    with torch.no_grad():
        for _ in range(2):
            expected = model(x)
            with kept:
                first, second = model(x), model(x)
            for y in (first, second):
                assert torch.equal(y.loc, expected.loc)
                assert torch.equal(y.cov.var, expected.cov.var)
            assert len(kept) == 3  # two squared weights and the factors of a batch norm
            for p in [*model.parameters(), model[1].running_var]:
                p.mul_(1.5)


def test_bfloat16_changes_deviations_by_a_fraction_of_a_per_cent(x: ua.Gaussian) -> None:
    model = network()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a processor that does not know the format says so
        exact = ua.propagate(model, x, method="diagonal")
        rough = ua.propagate(model, x, method="diagonal", var_dtype=torch.bfloat16)
    ratio = (rough.cov.var / exact.cov.var - 1).abs()
    assert 1e-5 < ratio.mean() < 4e-3
    assert ratio.max() < 0.02
    assert rough.cov.var.dtype == torch.float32
    assert rough.provenance.options == {"var_dtype": torch.bfloat16}
    first = ua.propagate(model[0], x, method="diagonal", var_dtype=torch.bfloat16)
    assert torch.equal(first.loc, model[0](x.loc)), "the mean's convolution is not touched"


def test_other_formats_are_refused_and_the_choice_ends_with_the_pass(x: ua.Gaussian) -> None:
    with pytest.raises(ValueError, match="must be torch"):
        ua.propagate(network(), x, method="diagonal", var_dtype=torch.float16)
    with pytest.raises(TypeError, match="no option 'var_dtype'"):
        ua.propagate(network(), x, method="sketch", var_dtype=torch.bfloat16)
    var = torch.ones(2)
    with variances_in(torch.bfloat16):
        assert reduced(var) is torch.bfloat16
        assert reduced(var.double()) is None
    assert reduced(var) is None


def test_a_processor_without_the_format_is_told_of() -> None:
    is_native.__globals__["_cpu_is_native"].cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        known = is_native(torch.device("cpu"))
        is_native(torch.device("cpu"))
    flags = Path("/proc/cpuinfo")
    if platform.machine() == "x86_64" and flags.exists():
        assert known == any(name in flags.read_text() for name in ("avx512_bf16", "amx_bf16"))
    elif not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert not known
    assert len(seen) == (not known)
    assert is_native(torch.device("cuda"))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_checksums_show_changes(size: int, layout: torch.memory_format) -> None:
    weight = torch.randn(4, 3, size, size).contiguous(memory_format=layout)
    before = constants._checksum(weight)
    assert torch.equal(before, constants._checksum(weight.clone()))
    for place in range(weight.numel()):
        changed = weight.clone(memory_format=torch.contiguous_format)
        changed.view(-1)[place] *= 1 + 2e-7
        changed = changed.contiguous(memory_format=layout)
        assert not torch.equal(before, constants._checksum(changed))
    assert not torch.equal(
        before, constants._checksum(weight.flip(0).contiguous(memory_format=layout))
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (3,), (5, 1), (2, 3, 5), (4, 3, 2, 2, 1)])
def test_checksums_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.ones(shape).to(dtype)
    before = constants._checksum(tensor)
    assert before.shape == (shape[0] if shape else 1,)
    tensor.data[(-1,) * len(shape)] = 1.5
    assert not torch.equal(before, constants._checksum(tensor))


def test_writes_that_count_no_version_are_noticed() -> None:
    """Those of ``weight.data`` and of fused optimizers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    module = ua.as_module(model).eval()
    mean, var = torch.randn(2, 3, 6, 6), torch.rand(2, 3, 6, 6)
    optimizer = torch.optim.Adam(model.parameters(), 0.1, fused=True)
    for step in range(4):
        with torch.no_grad():
            y = ua.propagate(model, ua.Gaussian(mean, var), method="diagonal")
            torch.testing.assert_close(module(mean, var), (y.loc, y.cov.var))
        if step % 2:
            model[0].weight.data.mul_(1.5)
            model[1].running_var.data.mul_(2.0)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
