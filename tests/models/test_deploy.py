"""ResNet-18, the digits and a transformer block: compiled, exported, and as files of ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import uaprop as ua
from uaprop.demo import digits_cnn

from .lively import lively


class Block(nn.Module):
    """A transformer's: attention and a perceptron, each behind a layer norm."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.perceptron = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Any) -> Any:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.perceptron(self.norms[1](x))


def resnet() -> tuple[nn.Module, Tensor]:
    from torchvision.models import resnet18

    images = torch.randn(4, 3, 64, 64)
    return lively(resnet18(weights=None), lambda model: model(images), 0), images[:2]


def digits() -> tuple[nn.Module, Tensor]:
    return digits_cnn(), torch.rand(2, 1, 8, 8)


def block() -> tuple[nn.Module, Tensor]:
    tokens = torch.randn(2, 20, 8)
    return lively(Block(), lambda model: model(tokens), 0), tokens


SUBJECTS = pytest.mark.parametrize("subject", [resnet, digits, block])


def assert_agree(found: Any, wanted: Any) -> None:
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        assert float(b.std()) > 1e-3 * float(b.abs().mean()), "this output tells nothing"
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


@SUBJECTS
def test_inductor_agrees_with_eager(subject: Any) -> None:
    model, x = subject()
    module = ua.as_module(model.requires_grad_(False))
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True)
    with torch.no_grad():
        assert_agree(compiled(x, 0.01 + 0.1 * x.square()), module(x, 0.01 + 0.1 * x.square()))


@SUBJECTS
def test_a_file_of_onnx_agrees_with_eager(subject: Any, tmp_path: Path) -> None:
    model, x = subject()
    module = ua.as_module(model.requires_grad_(False))
    assert ua.export(module, tmp_path / "model.onnx", x, 0.1) < 1e-4  # at other batch sizes


@SUBJECTS
def test_a_calibrated_program_agrees_with_eager(subject: Any, tmp_path: Path) -> None:
    model, x = subject()
    calibration = ua.calibrate(model.requires_grad_(False), x, std=0.3, samples=8)
    module = ua.as_module(model, "calibrated", calibration=calibration)
    assert ua.export(module, tmp_path / "model.pt2", x, 0.1) < 1e-4
