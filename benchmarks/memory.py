"""Peak memory of one pass, each in a process of its own.

Run by speed.py: python benchmarks/memory.py {plain,diagonal,module} BATCH SIZE
prints by how many bytes the resident memory was larger at its peak than before the pass (Linux). Weights
and input, with its variances, are there before; outputs, activations and whatever torch or the method keeps
come on top. What is loaded once, such as libraries and compiled kernels, is loaded by a small picture through
another network. The smallest of several processes counts.
"""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from networks import resnet18
from timed import CORES, STD, picture_classifier, pictures
from torch import nn

import uaprop as ua

BOUND = 2.3
STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WAYS = {
    "diagonal": ("diagonal", BOUND),
    "module": ("diagonal, `ua.as_module`, squared weights included", None),
}


def memory(batch: int, size: int, runs: int) -> Iterator[dict[str, Any]]:
    """Peak memory against that of a plain pass; a module also keeps the squares of the weights."""
    if not STATUS.exists():
        return  # the peak of a process is Linux's to tell
    plain = _measured("plain", batch, size, runs)
    for way, (label, bound) in WAYS.items():
        taken = _measured(way, batch, size, runs)
        yield {
            "what": f"peak memory, {label}",
            "network": f"ResNet-18, {batch} × 3 × {size} × {size}",
            "bound": bound,
            "ratio": min(taken) / min(plain),
            "bytes": min(taken),
            "plain_bytes": min(plain),
            "threads": CORES,
        }


def _measured(way: str, batch: int, size: int, runs: int) -> list[int]:
    command = [sys.executable, __file__, way, str(batch), str(size)]
    return [
        int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(runs)
    ]


def _passes(model: nn.Module, way: str, count: int, size: int) -> Callable[[], Any]:
    """One pass, its input made already."""
    mean = pictures(count, size)
    var = torch.full_like(mean, STD**2)
    x, module = ua.Gaussian(mean, var), ua.as_module(model, "diagonal")
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: model(mean),
        "diagonal": lambda: ua.propagate(model, x, method="diagonal"),
        "module": lambda: module(mean, var),
    }
    return ways[way]


def _status(field: str) -> int:
    """Bytes that the kernel notes for this process."""
    found = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise LookupError(f"{STATUS} has no {field}")
    return 1024 * int(found[1])


def main() -> None:
    way, batch, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(CORES)
    ua.fused(True)
    with torch.no_grad():
        _, model = picture_classifier()
        _passes(resnet18(nn.MaxPool2d(3, 2, 1)), way, 1, 32)()
        run = _passes(model, way, batch, size)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
        PEAK.write_text("5")  # man 5 proc: forget the peak so far
        before = _status("VmRSS")
        run()
    print(_status("VmHWM") - before)


if __name__ == "__main__":
    main()
