"""Memory that is freed is had again without asking the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import resource, sys
import torch
from uaprop.numerics.memory import keep_freed

if sys.argv[1] == "kept":
    keep_freed()

def passes():
    x = torch.ones(2**20)  # 4 MiB
    for _ in range(5):
        x = x + 1
        y = x * 2
        z = y - x

passes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    passes()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, mode], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has its own rules")
def test_freed_memory_is_kept() -> None:
    # where blocks come to lie is random, and a hole between them costs faults once
    kept = min(_faults("kept") for _ in range(4))
    assert kept < 0.1 * _faults("as it is")
