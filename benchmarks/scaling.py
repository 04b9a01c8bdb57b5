"""How the cost of each method grows, beside how its work does.

The work is the number of floating-point operations in convolutions and matrix products, forwards and
backwards, as torch counts them. Both slopes are of a straight line through the largest sizes of a log-log
plot, where what a call costs by itself has lost its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from timed import STD, pictures, plain_cnn
from timing import race
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import uaprop as ua

FITTED = 3  # sizes, the largest
AXES: Mapping[str, Sequence[int]] = {
    "depth": (2, 4, 8, 16),
    "width": (16, 32, 64, 128),
    "resolution": (8, 16, 32, 64),
    "batch": (1, 2, 4, 8, 16),
    "probes": (4, 8, 16, 32, 64),
    "outputs": (1, 4, 16, 64),
}


@dataclass(frozen=True)
class Size:
    """Of the network, its input and the method."""

    depth: int = 4
    width: int = 32
    resolution: int = 24
    batch: int = 2
    probes: int = 16
    outputs: int = 10


class Work(TorchDispatchMode):
    """Counts floating-point operations. torch's own counter also hooks into modules, which fails here."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        counted = flop_registry.get(func._overloadpacket)
        if counted is not None:
            self.count += counted(*args, **(kwargs or {}), out_val=result)
        return result


def contestants(size: Size) -> dict[str, Callable[[], Any]]:
    """A plain pass and the methods, on a network of that size."""
    model = plain_cnn(size.depth, size.width, size.outputs)
    mean = pictures(size.batch, size.resolution)
    x = ua.Gaussian(mean, std=STD)

    def by(method: str, **options: int) -> Callable[[], Any]:
        return lambda: ua.propagate(model, x, method=method, **options)

    return {
        "plain": lambda: model(mean),
        "diagonal": by("diagonal"),
        "sketch": by("sketch", probes=size.probes),
        "adjoint": by("adjoint", probes=size.probes),
        "hybrid": by("hybrid", samples=size.probes),
    }


def scaling(budget: float) -> dict[str, Any]:
    """Times and work along every axis, the other sizes as in :class:`Size`, and both slopes.

    Args:
        budget: seconds for each point, all methods together; there are three rounds at least.

    Returns:
        The usual ``size``, and for each axis ``sizes``, ``seconds``, ``work`` and both ``slopes`` by method.
    """
    ua.fused(True)
    result: dict[str, Any] = {"size": asdict(Size()), "fitted": FITTED, "axes": {}}
    with torch.no_grad():
        for axis, sizes in AXES.items():
            seconds: dict[str, list[float]] = {}
            work: dict[str, list[float]] = {}
            for size in sizes:
                runs = contestants(replace(Size(), **{axis: size}))
                measured = race(runs, budget, threads=1)
                for name, run in runs.items():
                    seconds.setdefault(name, []).append(measured.best(name))
                    work.setdefault(name, []).append(_work(run))
            result["axes"][axis] = {
                "sizes": list(sizes),
                "seconds": seconds,
                "work": work,
                "slopes": {
                    name: {
                        "seconds": slope(sizes, seconds[name]),
                        "work": slope(sizes, work[name]),
                    }
                    for name in seconds
                },
            }
    return result


def _work(run: Callable[[], Any]) -> int:
    with Work() as work:
        run()
    return work.count


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Of the least-squares line through the logarithms of the largest sizes."""
    x = torch.tensor([math.log(size) for size in sizes[-FITTED:]], dtype=torch.float64)
    y = torch.tensor([math.log(value) for value in values[-FITTED:]], dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())
