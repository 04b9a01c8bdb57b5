"""What the README and the pages say is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import uaprop as ua
from uaprop.demo import Comparison, compare_digits
from uaprop.registry import RULES

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TIMES = 6  # a busy machine can be so many times slower at one thing than at another


def run(page: str) -> dict[str, Any]:
    """Execute a page's Python blocks one after the other, as a reader would."""
    names: dict[str, Any] = {}
    blocks = _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert blocks
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    return names


def words(page: str) -> str:
    """A page's text on one line."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.fixture
def rules() -> Any:
    """Examples that add rules leave no trace."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Examples that write files write them here."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def demonstration() -> Comparison:
    return compare_digits()


def test_readme_examples(folder: Path, readme: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("README.md")
    model, x, flip = (names[name] for name in ("model", "x", "flip"))
    y = ua.propagate(model, x)  # what the first example calls y
    assert y.mean.shape == y.std.shape == y.standard_error.std.shape == (24, 10)
    assert y.covariance().shape == (24, 10, 10)
    assert y.attribution(3).shape == (24, 1, 8, 8)
    assert flip.flip.shape == (24,)
    assert flip.win.shape == names["probabilities"].shape == names["quick"].shape == (24, 10)
    assert (folder / "digits-calibration.safetensors").exists()
    assert isinstance(names["y"], ua.Gaussian)  # low-rank noise
    diagonal = ua.propagate(model, x, method="diagonal")  # the same but for rounding
    torch.testing.assert_close(names["scores"].cov.var, diagonal.cov.var)
    assert all(p.grad is not None for p in names["network"].parameters())
    first, table = capsys.readouterr().out.split("\n", 1)
    assert first.startswith("hybrid(samples=128, ")
    (quoted,) = _PRINTED.findall(readme)
    check_table(quoted, table)


def check_table(quoted: str, printed: str) -> None:
    """Errors are those that the code gives, times those of a similar machine."""
    old, new = (table.rstrip().split("\n\n") for table in (quoted, printed))
    assert re.sub(r"[\d.]+ ms", "", old[1]) == re.sub(r"[\d.]+ ms", "", new[1])
    rows, others = (
        [re.split(r" {2,}", line.strip()) for line in t[0].splitlines()] for t in (old, new)
    )
    assert [row[0] for row in rows[:2]] == [row[0] for row in others[:2]]
    methods = ["diagonal", "linear", "sketch", "adjoint", "hybrid", "an exact method"]
    assert [row[0] for row in rows if len(row) > 3][1:] == methods
    for row, other in zip(rows, others, strict=True):
        if row[0] not in methods:
            continue
        assert row[0] == other[0]
        mine, theirs = (
            [float(re.sub("[±%σ×,]", "", cell)) for cell in cells[1:]] for cells in (row, other)
        )
        assert mine[:3] == pytest.approx(theirs[:3], rel=0.06, abs=0.1), row[0]
        for number, measured in zip(mine[3:], theirs[3:], strict=True):
            assert 1 / _TIMES < number / measured < _TIMES, row[0]


def test_first_page_example() -> None:
    names = run("docs/index.md")
    assert names["y"].shape == (24, 10)
    assert names["y"].provenance.method == "hybrid"


def test_getting_started_examples(
    folder: Path, rules: None, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run("docs/getting-started.md")
    shares = names["shares"]
    assert shares.shape == (5, 4)
    assert names["flip"].win.sum(1).tolist() == pytest.approx([1] * 5)
    assert names["probabilities"].mean.sum(1).tolist() == pytest.approx([1] * 5, abs=1e-5)
    assert names["three"].shape == (24, 3)
    assert names["hidden"].shape == (6, 512)
    assert names["features"].shape == (24, 32, 8, 8)
    sampled = names["sampled"]
    assert float((names["hybrid"].std / sampled.std).mean()) == pytest.approx(1, abs=0.03)
    assert float((names["adjoint"].std / sampled.std).mean()) == pytest.approx(1, abs=0.03)
    assert 1 / 20 < float((names["diagonal"].std / sampled.std).mean()) < 1 / 16
    off = (names["calibrated"].std / sampled.std - 1).abs().mean()
    assert float(off) == pytest.approx(0.1, abs=0.03)
    total = names["of_light"] + names["of_sensor"]
    assert total.shape == (24,)
    assert bool((total > 0).all())
    small, x = names["small"], names["x"]
    truth = ua.propagate(small, x, method="samples", samples=50_000)
    torch.testing.assert_close(names["exact"].var, truth.var, rtol=0.05, atol=0)
    assert names["numbers"]["rows"][0]["method"] == "diagonal"

    assert names["total"].var.tolist() == [2.0, 2.0]
    a, b = names["a"], names["b"]
    expected = a.mean**2 * b.var + b.mean**2 * a.var + a.var * b.var
    torch.testing.assert_close(names["product"].cov.var, expected)
    assert names["nothing"].var.tolist() == pytest.approx([0, 0], abs=1e-12)
    assert all(p.grad is not None for p in names["network"].parameters())
    y, x = names["y"], names["x"]  # through the module with a rule
    torch.testing.assert_close(y.loc, torch.relu(3 * x).loc)
    assert float(y.cov.var.mean() / torch.relu(3 * x).cov.var.mean()) == pytest.approx(1, abs=0.3)
    square = torch.kron(ua.Gaussian(torch.eye(2), 0.5), torch.full((1, 1), 3.0))
    assert square.var.flatten().tolist() == [4.5] * 4
    printed = capsys.readouterr().out
    assert "Supported: all" in printed
    assert "by its graph, captured with torch.export, after TypeError" in printed
    assert "('torch.cumprod',)" in printed
    assert "Gaussian(5×3, torch.float32, samples" in printed
    assert "a small model with 4 noise sources for each item" in printed
    assert "torch.cumprod: " in printed
    assert "torch.Size([5, 3, 3])" in printed


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/theory/index.md"])
def test_the_ratio_that_pages_quote_is_the_demonstrations(
    page: str, demonstration: Comparison
) -> None:
    (quoted,) = re.findall(r"(\d+\.\d) times too small", words(page))
    assert float(quoted) == pytest.approx(demonstration.ratio, abs=0.1)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_error_that_pages_quote_is_the_demonstrations(
    page: str, demonstration: Comparison
) -> None:
    (quoted,) = re.findall(r"on average within (\d+\.\d)%", words(page))
    assert float(quoted) == pytest.approx(100 * demonstration.error, abs=0.1)
    (samples,) = re.findall(r"from (\d+) samples instead", words(page))
    told = demonstration.scores.provenance
    assert told is not None
    assert (told.method, told.options["samples"]) == ("hybrid", int(samples))


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_page_of_operations_is_up_to_date() -> None:
    command = [sys.executable, "docs/operations.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
