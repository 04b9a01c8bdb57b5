"""Every method on every model of the zoo: what Monte Carlo says, or a clear refusal."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import uaprop as ua

from .zoo import BATCH, CORRELATED, FEATURES, MODELS

METHODS: dict[str, dict[str, Any]] = {
    "auto": {},
    "diagonal": {},
    "linear": {},
    "sketch": {"probes": 512},
    "adjoint": {"probes": 64},
    "hybrid": {"samples": 64},
    "full": {},
    "samples": {"samples": 1000},
}
STD = 0.05
SAMPLES = 1500


def build(name: str) -> nn.Module:
    torch.manual_seed(7)
    return MODELS[name]()


def noisy() -> ua.Gaussian:
    mean = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(11))
    return ua.Gaussian(mean, std=STD)


def leaves(value: Any) -> list[Any]:
    """The floating-point parts of an output, in order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, each.name) for each in dataclasses.fields(value)]
    found = pytree.tree_leaves(value, is_leaf=lambda leaf: isinstance(leaf, ua.Gaussian))
    return [leaf for leaf in found if isinstance(leaf, ua.Gaussian | Tensor)]


@pytest.fixture(scope="module")
def truth() -> dict[str, tuple[Tensor, Tensor]]:
    return {}


def monte_carlo(name: str, known: dict[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of all outputs, from samples that go through the model one by one."""
    if name not in known:
        model, x = build(name), noisy()
        noise = torch.randn(SAMPLES, BATCH, FEATURES, generator=torch.Generator().manual_seed(3))
        outputs = []
        with torch.no_grad():
            for each in noise:
                found = leaves(copy.deepcopy(model)(x.loc + STD * each))
                outputs.append(torch.cat([leaf.reshape(-1) for leaf in found]))
        stacked = torch.stack(outputs)
        known[name] = stacked.mean(0), stacked.std(0)
        torch.use_deterministic_algorithms(False)
    return known[name]


def state(model: nn.Module) -> dict[str, Any]:
    """What a model holds, by identity and by value."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                found[f"{name}.{key}"] = (id(value), value.tolist())
            elif isinstance(value, dict):
                entries = [(k, id(v)) for k, v in value.items()]
                found[f"{name}.{key}"] = (id(value), entries)
            elif isinstance(value, list):
                found[f"{name}.{key}"] = (id(value), [id(v) for v in value])
            else:
                found[f"{name}.{key}"] = value
    found |= {f"buffer {name}": buffer.tolist() for name, buffer in model.named_buffers()}
    found |= {
        f"parameter {name}": (p.tolist(), p.grad, p.requires_grad)
        for name, p in model.named_parameters()
    }
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_the_result_is_right_or_refused(name: str, method: str, truth: Any) -> None:
    mean, std = monte_carlo(name, truth)
    try:
        y = ua.propagate(build(name), noisy(), method, **METHODS[method])
    except ua.UnsupportedOperation as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert method not in ("samples", "auto"), refusal
        return
    found = leaves(y)
    assert all(isinstance(leaf, ua.Gaussian) for leaf in found)
    means = torch.cat([leaf.loc.detach().reshape(-1) for leaf in found])
    stds = torch.cat([leaf.cov.var.detach().sqrt().reshape(-1) for leaf in found])
    few = method == "auto"  # which may have 16 samples of a model that is random itself
    assert float(((means - mean).abs() / std).max()) < (0.8 if few else 0.3)
    if method != "diagonal" or name not in CORRELATED:
        torch.testing.assert_close(stds, std, rtol=0.8 if few else 0.35, atol=1e-4)
        assert float((stds / std - 1).abs().mean()) < (0.3 if few else 0.15)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_the_model_is_the_same_before_and_after(name: str) -> None:
    model, x = build(name), noisy()
    given = x.loc.clone()
    before, seed = state(model), torch.get_rng_state()
    runs = [lambda m=m, o=o: ua.propagate(model, x, m, **o) for m, o in METHODS.items()]
    runs += [
        lambda: ua.coverage(model, x),
        lambda: ua.calibrate(model, x, samples=4),
        lambda: ua.compare(model, x, ["diagonal", "linear"], samples=100, repeats=1),
    ]
    for run in runs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run()
            except ua.UnsupportedOperation:
                continue
            finally:
                assert state(model) == before
                assert torch.equal(torch.get_rng_state(), seed)
                assert torch.equal(x.loc, given)
                assert not torch.are_deterministic_algorithms_enabled()
    with torch.no_grad():
        model(torch.randn(BATCH, FEATURES))  # and it still runs
    torch.use_deterministic_algorithms(False)
