"""ua.coverage: every operation of a model, and all that is missing in one answer."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua


class Block(nn.Module):
    """Three operations without a rule, one of them in place and one a decision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.inner(x))
        y = torch.cumprod(x, 1)
        y.digamma_()
        y = torch.where((y > 0.5), y, 0.0)
        return torch.addmm(torch.zeros(4), F.dropout(y, training=False), torch.eye(4))


def by_name(coverage) -> dict[str, object]:
    return {op.name: op for op in coverage.operations}


def test_everything_met_is_listed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), Block(), nn.Softmax(1)).eval()
    found = ua.coverage(model, torch.randn(2, 3))
    rows = by_name(found)
    linear = rows["torch.nn.functional.linear"]
    assert linear.calls == 2
    assert linear.modules == ("0 (Linear)", "1.inner (Linear)")
    assert (linear.kind, linear.moments) == ("Linear", "exact")
    relu = rows["torch.nn.functional.relu"]
    assert (relu.kind, relu.moments, relu.rule) == ("Elementwise", "exact", "relu")
    assert "report" in relu.source
    softmax = rows["torch.nn.functional.softmax"]
    assert (softmax.kind, softmax.moments) == ("Joint", "approximate")
    assert softmax.source
    composed = rows["torch.addmm"]
    assert composed.kind == "mm, mul, add"
    assert composed.moments == "exact"
    assert rows["torch.nn.functional.dropout"].kind == "identity"


def test_all_that_is_missing_comes_in_one_answer() -> None:
    model = nn.Sequential(nn.Linear(3, 4), Block()).eval()
    found = ua.coverage(model, torch.randn(2, 3))
    assert not found.supported
    missing = {op.name for op in found.unsupported}
    assert missing == {"torch.cumprod", "torch.Tensor.digamma_", "torch.gt"}
    text = str(found)
    assert "Not supported: 3 of" in text
    assert "torch.gt: its answer would be random, but not Gaussian" in text
    assert "1 (Block)" in text
    assert text.index("unsupported") < text.index("exact")  # the worst come first


def test_the_stand_in_has_the_plain_answer() -> None:
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        y = torch.cumprod(x, 0)
        y.digamma_()
        seen.append(y.loc)
        return y

    ua.coverage(model, torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(seen[0], torch.digamma(torch.tensor([1.0, 2.0, 6.0])))


def test_a_supported_model() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).eval()
    found = ua.coverage(model, torch.randn(1, 1, 6, 6))
    assert found.supported
    assert found.unsupported == ()
    assert "Supported: all 4 operations, 4 calls." in str(found)
    assert "<pre>" in found._repr_html_()


def test_to_dict_is_json() -> None:
    found = ua.coverage(nn.Sequential(nn.ReLU(), Block()), torch.randn(2, 4))
    again = json.loads(json.dumps(found.to_dict()))
    assert again["supported"] is False
    assert {row["moments"] for row in again["operations"]} >= {"exact", "unsupported"}


def test_given_gaussians_are_the_random_ones() -> None:
    def model(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    mean, weight = torch.randn(2, 3), torch.randn(4, 3)
    assert (
        by_name(ua.coverage(model, mean, weight))["torch.nn.functional.linear"].kind == "Bilinear"
    )
    found = ua.coverage(model, ua.Gaussian(mean, 1.0), weight=weight)
    assert by_name(found)["torch.nn.functional.linear"].kind == "Linear"


def test_a_model_that_takes_tensors_only() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(x, Tensor)
            return torch.cumprod(F.relu(x), 1)

    found = ua.coverage(nn.Sequential(Picky()), torch.randn(2, 3))
    assert "torch.export" in found.entrance
    assert "torch.export" in str(found)
    assert [op.moments for op in found.operations] == ["exact", "unsupported"]
    assert found.operations[0].modules == ("0 (Picky)",)


def test_a_program() -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (torch.ones(1, 3),))
    found = ua.coverage(program, torch.ones(1, 3))
    assert found.supported
    assert [op.kind for op in found.operations] == ["Linear", "Elementwise"]


def test_a_model_that_cannot_be_entered() -> None:
    class Data(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if float(x.sum()) > 0 else x

    found = ua.coverage(Data(), torch.ones(2, 3))
    assert not found.supported
    assert "does not work either" in str(found)


def test_token_numbers_cannot_be_random() -> None:
    with pytest.raises(TypeError, match="inputs_embeds"):
        ua.coverage(nn.Embedding(3, 2), torch.tensor([0, 1]))


def test_nothing_stays_behind() -> None:
    ua.coverage(nn.ReLU(), torch.ones(2))
    with pytest.raises(ua.UnsupportedOperation):
        torch.cumprod(ua.Gaussian(torch.ones(2), 1.0), 0)
