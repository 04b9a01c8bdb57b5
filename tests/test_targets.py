"""Models by name, for the command line."""

from __future__ import annotations

import json
from pathlib import Path

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
    done = run(str(path))
    assert done.exit_code == 0
    assert "aten.linear" in done.stdout


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
