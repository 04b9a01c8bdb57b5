"""``import uaprop`` is quick because of what it leaves out; benchmarks/overhead.py has the seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

import uaprop as ua
from uaprop.methods.propagate import METHODS

ADDED = """
import sys, torch
before = set(sys.modules)
import uaprop
print(*sorted(set(sys.modules) - before))
"""


@pytest.fixture(scope="module")
def added() -> set[str]:
    """The modules that ``import uaprop`` loads beyond those of torch."""
    done = subprocess.run([sys.executable, "-c", ADDED], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_but_the_library_is_added(added: set[str]) -> None:
    packages = {name.partition(".")[0] for name in added} - sys.stdlib_module_names
    assert packages == {"uaprop"}


def test_no_part_of_torch_is_loaded_that_torch_does_without(added: set[str]) -> None:
    assert not {name for name in added if name.startswith("torch")}


def test_what_only_some_programs_need_is_left_out(added: set[str]) -> None:
    assert "uaprop.methods.propagate" in added
    parts = {name.split(".")[1] for name in added if name.count(".")}
    assert not parts & {"check", "cli", "demo", "deploy", "plot"}
    assert not {f"uaprop.methods.{name}" for name in METHODS} & added


def test_and_there_once_it_is_asked_for() -> None:
    assert set(ua.__all__) <= set(dir(ua))
    for name in ua.__all__:
        assert getattr(ua, name) is not None
    assert ua.compare.__module__ == "uaprop.check.compare"
    with pytest.raises(AttributeError, match="has no attribute 'comparing'"):
        _ = ua.comparing
