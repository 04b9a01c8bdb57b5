"""How a model's propagated moments compare with Monte Carlo's.

``python -m tests.models.measure [part of a name …]`` measures the models of the table and prints the
rows of ``bounds.py``.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from dataclasses import astuple, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import uaprop as ua

from .bounds import BOUNDS, Errors
from .builders import Model
from .lively import lively
from .zoo import MODELS

__all__ = ["METHODS", "Measurement", "measure", "prepared"]

COPIES = 32  # of the input in a batch, and
SAMPLES = 32  # of each: 1024 in all
PROBES = 32
METHODS: dict[str, dict[str, Any]] = {"diagonal": {}, "sketch": {"probes": PROBES}}


@dataclass
class Measurement:
    """What was found.

    Attributes:
        liveliness: how much the output differs between inputs, relative to its size; the least of the
            outputs.
        response: the output's deviation under the noise, relative to its deviation between inputs.
        errors: those of each method.
        seconds: the processor time that each took.
    """

    liveliness: float
    response: float
    errors: dict[str, Errors] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def prepared(model: Model, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """The network with lively weights, and eight typical inputs for it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = model.build()
    inputs = model.inputs(16, seed)
    lively(network, lambda net: model.run(net, inputs), seed)
    return network, inputs[:8]


def measure(model: Model, noise: float, seeds: int = 1) -> Measurement:
    """Compare the methods with Monte Carlo on one input, and assert the answers' form on the way.

    Args:
        model: of the table.
        noise: the standard deviation of the input's noise.
        seeds: how many sets of probes to take the largest errors of.

    Returns:
        The errors.
    """
    start = time.process_time()
    network, inputs = prepared(model)
    built = time.process_time() - start
    with torch.no_grad():
        plain = model.run(network, inputs)
        own = model.run(network, inputs[:1])
        between = [t for t in pytree.tree_leaves(plain) if isinstance(t, Tensor)]
        arguments = model.arguments(ua.Gaussian(inputs[:1], std=noise))

        start = time.process_time()
        true = monte_carlo(model, network, inputs[:1], noise)
        seconds = {"build": built, "samples": time.process_time() - start}
        found = Measurement(
            liveliness=min(_rms(t.std(0)) / _rms(t) for t in between),
            response=min(_rms(y.std) / _rms(t.std(0)) for y, t in zip(true, between, strict=True)),
            seconds=seconds,
        )
        for method, options in METHODS.items():
            start = time.process_time()
            answer = ua.propagate(network, arguments, method, **options)
            seconds[method] = time.process_time() - start
            check_form(answer, own)
            errors = [_errors(_gaussians(answer), true)]
            for seed in range(1, seeds if method == "sketch" else 1):
                answer = ua.propagate(network, arguments, method, seed=seed, **options)
                errors.append(_errors(_gaussians(answer), true))
            found.errors[method] = Errors(
                *(max(each) for each in zip(*map(astuple, errors), strict=True))
            )
    return found


def monte_carlo(
    model: Model, network: nn.Module, x: Tensor, noise: float, draws: int = SAMPLES
) -> list[ua.Gaussian]:
    """The moments of the outputs by the method ``samples``, for a batch of copies of one input.

    A batch is quick also for a network that cannot be vectorised. The draws of each copy average to zero, so
    that the linear part of the noise cancels from the mean. Each has a key, and so noise of its own.
    """
    batch = ua.Gaussian(x.repeat(COPIES, *([1] * (x.ndim - 1))), std=noise)
    answer = ua.propagate(
        network,
        model.arguments(batch),
        "samples",
        samples=draws,
        centred=True,
        keys=list(range(COPIES)),
    )
    return [
        ua.Gaussian(y.mean.mean(0, keepdim=True), y.var.mean(0, keepdim=True))
        for y in _gaussians(answer)
    ]


def check_form(answer: Any, own: Any) -> None:
    """The answer has the structure of the model's own, and Gaussians that can be."""
    leaves, spec = pytree.tree_flatten(answer, is_leaf=_is_gaussian)
    plain, own_spec = pytree.tree_flatten(own)
    assert spec == own_spec, f"structure {spec}, not {own_spec}"
    assert type(answer) is type(own) or _is_gaussian(answer)
    for leaf, tensor in zip(leaves, plain, strict=True):
        if not isinstance(tensor, Tensor):
            assert leaf == tensor
            continue
        assert _is_gaussian(leaf), f"{type(leaf).__name__} in place of a Gaussian"
        assert leaf.shape == tensor.shape
        assert leaf.dtype == tensor.dtype
        assert bool(leaf.mean.isfinite().all()), "a mean is not finite"
        assert bool(leaf.var.isfinite().all()), "a variance is not finite"
        assert bool((leaf.var >= 0).all()), "a variance is negative"


def _errors(found: list[ua.Gaussian], true: list[ua.Gaussian]) -> Errors:
    pairs = list(zip(found, true, strict=True))
    ratios = torch.cat([_log_ratio(y.std, t.std).abs().flatten() for y, t in pairs])
    return Errors(
        typical=float(ratios.median()),
        pooled=max(abs(math.log(_rms(y.std) / _rms(t.std))) for y, t in pairs),
        mean=max(_rms(y.mean - t.mean) / _rms(t.std) for y, t in pairs),
    )


def _log_ratio(std: Tensor, true: Tensor) -> Tensor:
    least = 1e-3 * _rms(true)  # what hardly varies does not count
    return torch.log((std + least) / (true + least))


def _rms(t: Tensor) -> float:
    return float(t.double().square().mean().sqrt())


def _is_gaussian(value: Any) -> bool:
    return isinstance(value, ua.Gaussian)


def _gaussians(answer: Any) -> list[ua.Gaussian]:
    return [y for y in pytree.tree_leaves(answer, is_leaf=_is_gaussian) if _is_gaussian(y)]


def choose_noise(model: Model) -> float:
    """The largest noise that changes the output by less than a sixth of what other inputs do."""
    network, inputs = prepared(model)
    with torch.no_grad():
        between = [
            t for t in pytree.tree_leaves(model.run(network, inputs)) if isinstance(t, Tensor)
        ]
        for noise in (0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
            true = monte_carlo(model, network, inputs[:1], noise, draws=2)
            pairs = zip(true, between, strict=True)
            if max(_rms(y.std) / _rms(t.std(0)) for y, t in pairs) < 0.15:
                break
    return noise


def bound(errors: Errors) -> str:
    """What was measured, and one or two standard errors of it, rounded up."""
    error = 1 / math.sqrt(2 * COPIES * SAMPLES)
    slack = (error, 2 * error, error)
    numbers = (math.ceil(100 * (e + s)) / 100 for e, s in zip(astuple(errors), slack, strict=True))
    return "({:.2f}, {:.2f}, {:.2f})".format(*numbers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the models' names; all by default")
    parser.add_argument("--noise", type=float, help="instead of the table's")
    parser.add_argument("--seeds", type=int, default=3, help="sets of probes; 3 by default")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, model in MODELS.items():
        if options.names and not any(part in name for part in options.names):
            continue
        try:
            noise = options.noise or (BOUNDS[name].noise if name in BOUNDS else choose_noise(model))
            found = measure(model, noise, options.seeds)
        except Exception as error:
            print(f"    # {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        rows = ", ".join(map(bound, found.errors.values()))
        print(f'    "{name}": _row({noise}, {rows}),', flush=True)
        numbers = " | ".join(
            f"{e.typical:.3f} {e.pooled:.3f} {e.mean:.3f}" for e in found.errors.values()
        )
        times = " ".join(f"{key} {s:.1f}" for key, s in found.seconds.items())
        print(
            f"    # lively {found.liveliness:.2f} response {found.response:.3f} | {numbers} | {times}",
            flush=True,
        )


if __name__ == "__main__":
    main()
