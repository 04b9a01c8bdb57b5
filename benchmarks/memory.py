"""Peak memory of one pass, each in a process of its own.

Run by speed.py: python benchmarks/memory.py {plain,diagonal,"diagonal, again"} BATCH SIZE
prints by how many bytes the resident memory was larger at its peak than before the pass (Linux). Weights and
input are there before; outputs, activations and whatever torch or the method keeps come on top. What is loaded
once, such as libraries and compiled kernels, is loaded beforehand, by small pictures through another network.
"""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from networks import resnet18
from timed import CORES, STD, picture_classifier, pictures
from torch import Tensor, nn

import uaprop as ua

BOUND = 2.3
RUNS = 3
STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WAYS = {"diagonal": BOUND, "diagonal, again": None}


def memory(batch: int, size: int) -> Iterator[dict[str, Any]]:
    """Peak memory against that of a plain pass: the first pass, and once squared weights are there."""
    if not STATUS.exists():
        return  # the peak of a process is Linux's to tell
    plain = _measured("plain", batch, size)
    for way, bound in WAYS.items():
        taken = _measured(way, batch, size)
        yield {
            "what": f"peak memory, {way}",
            "network": f"ResNet-18, {batch} × 3 × {size} × {size}",
            "bound": bound,
            "ratio": min(taken) / min(plain),
            "bytes": min(taken),
            "plain_bytes": min(plain),
            "threads": CORES,
        }


def _measured(way: str, batch: int, size: int) -> list[int]:
    command = [sys.executable, __file__, way, str(batch), str(size)]
    return [
        int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(RUNS)
    ]


def _input(way: str, count: int, size: int) -> Any:
    mean = pictures(count, size)
    return mean if way == "plain" else ua.Gaussian(mean, torch.full_like(mean, STD**2))


def _pass(model: nn.Module, x: Any) -> Any:
    return model(x) if isinstance(x, Tensor) else ua.propagate(model, x, method="diagonal")


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
        _pass(resnet18(nn.MaxPool2d(3, 2, 1)), _input(way, 1, 32))
        _pass(model, _input(way if way.endswith("again") else "plain", 1, 32))
        x = _input(way, batch, size)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
        PEAK.write_text("5")  # man 5 proc: forget the peak so far
        before = _status("VmRSS")
        _pass(model, x)
    print(_status("VmHWM") - before)


if __name__ == "__main__":
    main()
