"""``uaprop coverage`` on models of torchvision, timm and transformers, by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from uaprop.cli.app import app

TARGETS = [
    ("torchvision:resnet18", "1,3,64,64", "F.max_pool2d"),
    ("timm:convnext_atto", "1,3,64,64", "F.layer_norm"),
    ("transformers:distilbert", "1,5,768", "F.scaled_dot_product_attention"),
]


@pytest.mark.parametrize(("target", "shape", "operation"), TARGETS, ids=[t for t, *_ in TARGETS])
def test_coverage_by_name(target: str, shape: str, operation: str) -> None:
    done = CliRunner().invoke(app, ["coverage", target, "--shape", shape])
    assert done.exit_code == 0, done.output
    assert operation in done.stdout
    assert "Supported: all" in done.stdout


def test_a_folder_with_a_configuration(tmp_path: Path) -> None:
    import transformers

    transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    ).save_pretrained(tmp_path)
    done = CliRunner().invoke(app, ["coverage", f"transformers:{tmp_path}"])
    assert done.exit_code == 0, done.output
    assert "F.layer_norm" in done.stdout


@pytest.mark.parametrize("target", ["torchvision:no_such_net", "timm:no_such_net"])
def test_an_unknown_name(target: str) -> None:
    done = CliRunner().invoke(app, ["coverage", target])
    assert done.exit_code == 2
    assert "has no model 'no_such_net'" in " ".join(done.output.replace("│", " ").split())
