"""Models by name, for the command line."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from uaprop.cli.app import app

runner = CliRunner()


def run(*args: str):
    return runner.invoke(app, ["coverage", *args], terminal_width=200)


def test_a_callable_by_its_name() -> None:
    done = run("torch.nn.functional:gelu", "--shape", "2,3")
    assert done.exit_code == 0
    assert "F.gelu" in done.stdout
    assert "Supported" in done.stdout


def test_a_class_of_modules_is_made() -> None:
    done = run("torch.nn:Softsign", "--shape", "2,3", "--json")
    told = json.loads(done.stdout)
    assert [row["name"] for row in told["operations"]] == ["torch.nn.functional.softsign"]


def test_unsupported_operations_are_an_exit_code() -> None:
    done = run("torch:det", "--shape", "2,2")
    assert done.exit_code == 1
    assert "torch.det: no rule" in done.stdout


def test_a_saved_program(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(
        torch.export.export(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (torch.ones(1, 3),)), path
    )
    done = run(str(path), "--trust")
    assert done.exit_code == 0
    assert "aten.linear" in done.stdout


class Folded(nn.Module):
    """Has a size that is an expression of another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2 * x.shape[0], -1)


class Marker:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def hostile(path: Path, way: str, marker: Path) -> Path:
    """A program whose loading makes a file: by a pickled object, or by an expression."""
    good = path.with_name("good.pt2")
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Folded(), (torch.ones(4, 6),), dynamic_shapes=({0: batch},))
    torch.export.save(program, good)
    pickled = io.BytesIO()
    torch.save(((Marker(marker),), {}), pickled)
    code = f"Integer(2 + 0 * len(str(__import__('pathlib').Path('{marker}').touch())))"
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if way == "pickle" and "sample_inputs" in name:
                data = pickled.getvalue()
            if way == "expression" and name.endswith("models/model.json"):
                changed = data.replace(b"Integer(2)", code.encode())
                assert changed != data
                data = changed
            target.writestr(name, data)
    return path


@pytest.mark.parametrize("way", ["pickle", "expression"])
def test_a_file_runs_no_code_unless_it_is_trusted(tmp_path: Path, way: str) -> None:
    marker = tmp_path / "was-run"
    path = hostile(tmp_path / "model.pt2", way, marker)
    for command in (["coverage"], ["export", "--to", str(tmp_path / "out.onnx")]):
        done = runner.invoke(app, [*command, str(path)], terminal_width=200)
        assert done.exit_code == 2
        text = " ".join(done.output.replace("│", " ").split())
        assert "can run code" in text
        assert "--trust" in text
        assert not marker.exists()
    run(str(path), "--trust")
    assert marker.exists()  # so this is what is at stake


def test_a_file_that_is_no_program_is_said_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"something else")
    done = run(str(path), "--trust")
    assert done.exit_code == 2
    assert "is no program of torch.export" in " ".join(done.output.replace("│", " ").split())


def test_code_in_a_folder_of_transformers_is_not_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    marker = tmp_path / "was-run"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "own.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
        "from transformers import PretrainedConfig, PreTrainedModel\n"
        "class Config(PretrainedConfig):\n    model_type = 'own'\n"
        "class Model(PreTrainedModel):\n    config_class = Config\n"
    )
    classes = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": classes}))
    done = runner.invoke(app, ["coverage", f"transformers:{folder}"], input="y\n")
    assert done.exit_code == 2
    assert not marker.exists()


def test_a_builder_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\ndef build(width=4):\n    return nn.Linear(3, width)\n"
    )
    monkeypatch.chdir(tmp_path)
    done = run("my_models:build", "--shape", "1,3")
    assert done.exit_code == 0
    assert "F.linear" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["resnet18"], "is none of"),
        (["nowhere.pt2"], "there is no file"),
        (["torch.nn:Nothing", "--shape", "1"], "no callable 'Nothing'"),
        (["no_such_package:model", "--shape", "1"], "no module no_such_package"),
        (["torch.nn.functional:relu"], "give the shape"),
        (["torch.nn.functional:relu", "--shape", "1x3"], "is no shape"),
    ],
)
def test_what_a_user_can_put_right_is_said_in_a_line(args: list[str], words: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    text = " ".join(done.output.replace("│", " ").split())
    assert words in text
    assert "Traceback" not in text
