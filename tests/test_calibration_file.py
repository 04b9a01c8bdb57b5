"""Files of calibrations: every damage is an error that says what is wrong, and none is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import uaprop as ua
from uaprop.cli.app import app

NAN, INF = float("nan"), float("inf")


def _calibration() -> ua.Calibration:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh())
    return ua.calibrate(model, torch.randn(6, 3), std=0.3, samples=8)


@pytest.fixture(scope="module")
def calibration() -> ua.Calibration:
    return _calibration()


@pytest.fixture(scope="module")
def content(calibration: ua.Calibration, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("calibration") / "good.safetensors"
    calibration.save(path)
    return path.read_bytes()


def changed(tensor: Tensor, value: float, *index: int) -> Tensor:
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


def first(calibration: ua.Calibration, value: float) -> dict[str, Any]:
    return {"factors": (changed(calibration.factors[0], value, 1), *calibration.factors[1:])}


NUMBERS: dict[str, tuple[Callable[[ua.Calibration], dict[str, Any]], str]] = {
    "factor NaN": (lambda c: first(c, NAN), "factors at place 0: NaN or infinity"),
    "factor infinite": (lambda c: first(c, INF), "factors at place 0: NaN or infinity"),
    "factor negative": (lambda c: first(c, -0.5), "place 0: -0.5 is negative"),
    "factors missing": (lambda c: {"factors": c.factors[:-1]}, "3 places, and factors for 2"),
    "factors of two dimensions": (
        lambda c: {"factors": (c.factors[0][None], *c.factors[1:])},
        r"place 0 have the shape \(1, 4\)",
    ),
    "factors are integers": (
        lambda c: {"factors": (c.factors[0].long(), *c.factors[1:])},
        "int64 is no floating-point type",
    ),
    "slope NaN": (lambda c: {"slopes": changed(c.slopes, NAN, 0)}, "slopes: NaN"),
    "slope infinite": (lambda c: {"slopes": changed(c.slopes, -INF, 0)}, "slopes: NaN or inf"),
    "slopes short": (lambda c: {"slopes": c.slopes[:-1]}, r"slopes has the shape \(2,\)"),
    "slopes complex": (lambda c: {"slopes": c.slopes.cfloat()}, "complex64 is no floating"),
    "level NaN": (lambda c: {"levels": changed(c.levels, NAN, 1, 1)}, "levels: NaN"),
    "levels reversed": (lambda c: {"levels": c.levels.flip(1)}, "not between the least and"),
    "levels exchanged": (
        lambda c: {"levels": c.levels[:, [0, 2, 1]].contiguous()},
        "not between the least and",
    ),
    "levels narrow": (lambda c: {"levels": c.levels[:, :2].contiguous()}, r"levels has the shape"),
    "curve infinite": (lambda c: {"curves": changed(c.curves, INF, 2, 5)}, "curves: NaN or inf"),
    "curve without width": (lambda c: {"curves": torch.ones_like(c.curves)}, "first knot"),
    "curves long": (lambda c: {"curves": torch.cat([c.curves] * 2)}, "curves has the shape"),
    "held-out error NaN": (lambda c: {"held_out": changed(c.held_out, NAN, 0, 1)}, "held_out: NaN"),
    "held-out error negative": (
        lambda c: {"held_out": changed(c.held_out, -0.1, 0, 0)},
        "held_out: -0.1 is negative",
    ),
    "held-out errors of two outputs": (
        lambda c: {"held_out": torch.cat([c.held_out] * 2)},
        r"held_out has the shape \(2, 2\), not \(1, 2\) or \(0, 2\)",
    ),
    "held-out error without its mean": (
        lambda c: {"held_out": c.held_out[:, :1].contiguous()},
        r"held_out has the shape \(1, 1\)",
    ),
    "range infinite": (lambda c: {"inputs": changed(c.inputs, INF, 0, 0, 3)}, "inputs: NaN or inf"),
    "range reversed": (lambda c: {"inputs": c.inputs.flip(2)}, "ends of a range are not in order"),
    "range beyond its tolerance": (
        lambda c: {"inputs": changed(c.inputs, 99.0, 0, 1, 2)},
        "ends of a range are not in order",
    ),
    "no ranges": (lambda c: {"inputs": c.inputs[:0]}, r"inputs has the shape \(0, 3, 4\)"),
    "ranges short": (
        lambda c: {"inputs": c.inputs[:, :2].contiguous()},
        r"inputs has the shape \(1, 2, 4\), not \(inputs, 3, 4\)",
    ),
    "ranges are integers": (
        lambda c: {"inputs": c.inputs.long()},
        "int64 is no floating-point type",
    ),
    "ranges without dimensions": (
        lambda c: {"inputs": torch.tensor(1.0)},
        r"inputs has the shape \(\)",
    ),
    "no places": (
        lambda c: {
            "places": (),
            "factors": (),
            **{name: getattr(c, name)[:0] for name in ("slopes", "levels", "curves")},
        },
        "its places are",
    ),
    "more places": (lambda c: {"places": (*c.places, "Output")}, "4 places, and factors for 3"),
    "places are numbers": (lambda c: {"places": (1, 2, 3)}, "not names"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_impossible_numbers_are_refused(
    calibration: ua.Calibration, name: str, tmp_path: Path
) -> None:
    change, words = NUMBERS[name]
    path = tmp_path / "bad.safetensors"
    replace(calibration, **change(calibration)).save(path)
    with pytest.raises(ValueError, match=rf"bad\.safetensors is no valid calibration: .*{words}"):
        ua.Calibration.load(path)


def rewritten(path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], None]) -> None:
    """The file with other tensors or metadata, as another program would write it."""
    with safe_open(str(path), framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, str(path), metadata=metadata)


EDITS: dict[str, Callable[[dict[str, Tensor], dict[str, str]], Any]] = {
    "a factor": lambda tensors, _: tensors["00000"].mul_(1.001),
    "a factor's dtype": lambda tensors, _: tensors.update({"00000": tensors["00000"].double()}),
    "a tensor removed": lambda tensors, _: tensors.pop("00001"),
    "a law removed": lambda tensors, _: tensors.pop("slopes"),
    "a tensor added": lambda tensors, _: tensors.update({"more": torch.ones(1)}),
    "a tensor renamed": lambda tensors, _: tensors.update({"0000": tensors.pop("00000")}),
    "no format": lambda _, metadata: metadata.pop("format"),
    "an older format": lambda _, metadata: metadata.update(format="uaprop calibration 5"),
    "no held-out error": lambda tensors, _: tensors.pop("held_out"),
    "no ranges": lambda tensors, _: tensors.pop("inputs"),
    "another held-out error": lambda tensors, _: tensors["held_out"].mul_(0.5),
    "no places": lambda _, metadata: metadata.pop("places"),
    "no model": lambda _, metadata: metadata.pop("model"),
    "no checksum": lambda _, metadata: metadata.pop("checksum"),
    "more metadata": lambda _, metadata: metadata.update(more="1"),
    "another model": lambda _, metadata: metadata.update(model="0" * 64),
    "other places": lambda _, metadata: metadata.update(places=json.dumps(["Output"] * 3)),
    "places are no JSON": lambda _, metadata: metadata.update(places="[Elementwise]"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_files_are_refused(content: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "edited.safetensors"
    path.write_bytes(content)
    ua.Calibration.load(path)
    rewritten(path, EDITS[name])
    with pytest.raises(ValueError, match=r"edited\.safetensors is .*(calibration|damaged)"):
        ua.Calibration.load(path)


@settings(max_examples=300)
@given(data=st.data())
def test_a_changed_byte_is_noticed_wherever_it_is(
    content: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[position] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"damaged\.safetensors is .*calibration"):
        ua.Calibration.load(path)


def test_a_truncated_file_is_refused_wherever_it_ends(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "short.safetensors"
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"short\.safetensors is no calibration, or damaged"):
            ua.Calibration.load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match="damaged"):
        ua.Calibration.load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, data in (("text", b"hello\n" * 9), ("zeros", bytes(100)), ("ones", b"\xff" * 100)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} is no calibration"):
            ua.Calibration.load(tmp_path / name)
    save_file({"weight": torch.ones(2)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="weights is no calibration of this version"):
        ua.Calibration.load(tmp_path / "weights")
    torch.save({"factors": torch.ones(2)}, tmp_path / "pickled")
    with pytest.raises(ValueError, match="pickled is no calibration"):
        ua.Calibration.load(tmp_path / "pickled")
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(OSError, match=str(missing)):
            ua.Calibration.load(missing)


def test_the_command_says_so_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "factors").write_bytes(b"something else")
    given = ["uaprop.demo:digits_cnn", "--shape", "1,1,8,8", "--to", str(tmp_path / "m.pt2")]
    given += ["--method", "calibrated", "--calibration", str(tmp_path / "factors")]
    done = CliRunner().invoke(app, ["export", *given], terminal_width=200)
    assert done.exit_code == 2
    assert "is no calibration" in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_good_file_is_read_whatever_the_dtype(
    calibration: ua.Calibration, dtype: torch.dtype, tmp_path: Path
) -> None:
    other = calibration.with_factors([factor.to(dtype) for factor in calibration.factors])
    other.save(tmp_path / "good")
    loaded = ua.Calibration.load(tmp_path / "good")
    assert all(map(torch.equal, loaded.factors, other.factors))
    assert loaded.model == calibration.model


def test_a_model_without_finite_outputs_has_no_calibration() -> None:
    def model(x: Any) -> Any:
        return torch.tanh(x) * INF

    with pytest.raises(ValueError, match="no calibration can be fitted"):
        ua.calibrate(model, torch.randn(6, 3), std=0.3, samples=8)


def test_what_was_read_does_not_change_with_its_file(
    calibration: ua.Calibration, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "calibration.safetensors"
    path.write_bytes(content)
    found = ua.Calibration.load(path)
    path.write_bytes(content[:-100] + bytes(100))
    for name in ("slopes", "levels", "curves", "held_out", "inputs"):
        assert torch.equal(getattr(found, name), getattr(calibration, name))
    for factor, wanted in zip(found.factors, calibration.factors, strict=True):
        assert torch.equal(factor, wanted)
