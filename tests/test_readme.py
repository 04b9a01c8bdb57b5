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
from uaprop.demo import compare_digits
from uaprop.registry import _RULES

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(page: str) -> dict[str, Any]:
    """Execute a page's Python blocks one after the other, as a reader would."""
    names: dict[str, Any] = {}
    blocks = _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert blocks
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    return names


@pytest.fixture
def rules() -> Any:
    """Examples that add rules leave no trace."""
    before = dict(_RULES)
    yield
    _RULES.clear()
    _RULES.update(before)


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_examples() -> None:
    names = run("README.md")
    model, x, y, truth = (names[name] for name in ("model", "x", "y", "truth"))
    assert isinstance(y, ua.Gaussian)
    assert y.mean.shape == y.var.shape == y.std.shape == (24, 10)
    torch.testing.assert_close(y.std.square(), y.var)
    certain = model(ua.Gaussian(x.mean, 0.0))
    torch.testing.assert_close(certain.loc, model(x.loc), rtol=0, atol=0)
    assert certain.cov.var.count_nonzero() == 0
    assert truth.std.shape == (24, 10)
    assert 17 < names["ratio"] < 19.5
    assert all(p.grad is not None for p in names["network"].parameters())


def test_first_page_example() -> None:
    assert run("docs/index.md")["y"].shape == (24, 10)


def test_getting_started_examples(rules: None, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("docs/getting-started.md")
    assert names["total"].var.tolist() == [2.0, 2.0]
    a, b = names["a"], names["b"]
    expected = a.mean**2 * b.var + b.mean**2 * a.var + a.var * b.var
    torch.testing.assert_close(names["product"].cov.var, expected)
    assert float(names["t"].mean) == 3.0
    assert float(names["t"].var) == 1.5
    printed = capsys.readouterr().out
    assert "Gaussian(3×2, torch.float32, diagonal" in printed
    assert "torch.cumprod: no rule says how it acts on a Gaussian. Add a rule" in printed
    assert "torch.Size([3, 2, 2])" in printed


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/theory.md"])
def test_the_ratio_that_pages_quote_is_the_demonstrations(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    (quoted,) = re.findall(r"(\d+\.\d)(?: times too small|\W+\(printed by `make demo`)", text)
    measured = compare_digits(samples=1000).ratio
    assert abs(float(quoted) / measured - 1) < 0.05


def test_readme_links_lead_somewhere(readme: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", readme):
        assert (ROOT / target).exists(), target


def test_page_of_operations_is_up_to_date() -> None:
    command = [sys.executable, "docs/operations.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
