"""A model and the process are the same before and after everything that runs the model."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import uaprop as ua

METHODS = ("auto", "diagonal", "linear", "sketch", "adjoint", "hybrid", "full", "samples")
Run = Callable[[Any, ua.Gaussian], Any]

RUNS: dict[str, Run] = {
    **{name: functools.partial(ua.propagate, method=name) for name in METHODS},
    "calibrated": lambda model, x: ua.propagate(
        model, x, "calibrated", calibration=ua.calibrate(model, x)
    ),
    "compare": lambda model, x: ua.compare(model, x, samples=100, repeats=1),
    "coverage": ua.coverage,
    "calibrate": ua.calibrate,
    "as_module": lambda model, x: ua.as_module(model)(x.loc, x.cov.var),
}


@dataclass
class Meter:
    """Something that counts, in an attribute of a module."""

    calls: int = 0
    seen: list[Any] = field(default_factory=list)


class Counter:
    """Another one, that is no dataclass."""

    def __init__(self) -> None:
        self.calls = 0
        self.total = torch.zeros(2)
        self.array = np.zeros(2)


class Busy(nn.Module):
    """A model that assigns, appends, counts and writes to whatever it has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 3)
        self.register_buffer("ema", torch.zeros(5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.plain = torch.zeros(2)
        self.cache: Any = None
        self.calls = 0
        self.history: list[Any] = []
        self.recent: deque[Any] = deque(maxlen=3)
        self.named: dict[str, Any] = {"known": [1]}
        self.kinds: set[str] = set()
        self.meter = Meter()
        self.counter = Counter()
        self.array = np.zeros(2)
        self.space = types.SimpleNamespace(n=0)
        self.removed = "here"

    def forward(self, x: Any) -> Any:
        h = self.norm(self.first(x))
        self.ema = 0.9 * self.ema + 0.1 * h.mean(0).detach()
        self.steps += 1
        self.plain.add_(1)
        self.calls += 1
        self.cache = h
        self.new = h
        self.history.append(h)
        self.recent.append(h)
        self.named["h"] = h
        self.named["known"].append(2)
        self.kinds.add(str(self.calls))
        self.meter.calls += 1
        self.meter.seen.append(h)
        self.counter.calls += 1
        self.counter.total += 1
        self.counter.array += 1
        self.counter.last = h  # type: ignore[attr-defined]
        self.array += 1
        self.space.n += 1
        if hasattr(self, "removed"):
            del self.removed
        self.first.weight.requires_grad_(False)
        self.norm.momentum = 0.5
        if not self.last._forward_hooks:
            self.last.register_forward_hook(_nothing)
        self.register_buffer("late", torch.ones(1))
        return self.last(torch.relu(h))


def _nothing(*arguments: Any) -> None:
    """A hook."""


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything of a model by identity, and the values of what can be written to."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            found[f"{name}.{key}"] = _frozen(value)
    for name, parameter in model.named_parameters():
        found[f"{name} flags"] = (parameter.requires_grad, id(parameter.grad))
    return found


def _frozen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return id(value), value.tolist()
    if isinstance(value, nn.Module):
        return id(value)
    if isinstance(value, dict):
        return id(value), [(key, _frozen(inner)) for key, inner in value.items()]
    if isinstance(value, list | deque):
        return id(value), [_frozen(inner) for inner in value]
    if isinstance(value, set):
        return id(value), sorted(map(str, value))
    if isinstance(value, np.ndarray):
        return id(value), value.tolist()
    if isinstance(value, Meter | Counter | types.SimpleNamespace):
        return id(value), _frozen(vars(value))
    return value


def noisy() -> ua.Gaussian:
    return ua.Gaussian(torch.randn(6, 4, generator=torch.Generator().manual_seed(3)), std=0.05)


def ignoring(run: Run, model: Any, x: ua.Gaussian) -> Any:
    """The result without warnings; None where the run refuses the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(model, x)
        except ua.UnsupportedOperation:
            return None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", RUNS)
def test_a_model_that_changes_everything_is_the_same_afterwards(name: str, training: bool) -> None:
    model = Busy().train(training)
    before = snapshot(model)
    ignoring(RUNS[name], model, noisy())
    assert snapshot(model) == before
    assert hasattr(model, "removed")
    model(torch.randn(6, 4))  # and it still runs


@pytest.mark.parametrize("name", RUNS)
def test_batch_statistics_are_the_same_afterwards(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).train()
    state, norm = copy.deepcopy(model.state_dict()), model[1]
    ignoring(RUNS[name], model, noisy())
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)
    assert norm.num_batches_tracked == 0


class Failing(Busy):
    def forward(self, x: Any) -> Any:
        super().forward(x)
        raise LookupError("after everything was changed")


@pytest.mark.parametrize("name", RUNS)
def test_a_model_that_raises_is_the_same_afterwards(name: str) -> None:
    model = Failing().train()
    before = snapshot(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(LookupError, match="after everything"):
            RUNS[name](model, noisy())
    assert snapshot(model) == before


def test_a_graph_that_the_caller_holds_is_not_spoiled() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).train()
    loss = model(torch.randn(6, 4)).sum()
    ignoring(RUNS["diagonal"], model, noisy())
    loss.backward()
    assert model[0].weight.grad is not None


class Wrapper:
    """A callable object that is no module."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Any) -> Any:
        return self.net(x)

    def run(self, x: Any) -> Any:
        return self.net(x) * 2


class Holder:
    """An object that only holds a model."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net


def _through(x: Any, nets: list[nn.Module]) -> Any:
    return nets[0](x)


GLOBAL = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).train()


def _by_global(x: Any) -> Any:
    return GLOBAL(x)


CALLABLES: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {
    "a closure": lambda net: lambda x: net(x).sigmoid(),
    "a function in a closure": lambda net: (lambda inner: lambda x: inner(x) + 1)(lambda x: net(x)),
    "a partial": lambda net: functools.partial(_through, nets=[net]),
    "a bound method of a module": lambda net: net.forward,
    "a bound method of an object": lambda net: Wrapper(net).run,
    "a callable object": Wrapper,
    "a default value": lambda net: lambda x, inner=net: inner(x),
    "a decorated function": lambda net: functools.wraps(_by_global)(lambda x: net(x)),
    "a list in a closure": lambda net: (lambda nets: lambda x: nets[0](x))([net]),
    "nested collections": lambda net: (lambda nets: lambda x: nets["a"][0][0](x))({"a": [(net,)]}),
    "an object in a closure": lambda net: (lambda held: lambda x: held.net(x))(Holder(net)),
    "buffers in a dict": lambda net: (
        lambda buffers: lambda x: functional_call(net, buffers, (x,))
    )(dict(net.named_buffers())),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_modules_behind_other_callables_are_found(name: str) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).train()
    for method in ("diagonal", "samples"):
        ignoring(RUNS[method], CALLABLES[name](net), noisy())
        assert net[1].num_batches_tracked == 0
        assert not net[1].running_mean.any()


class Functional:
    """A model that is no module, with tensors and a list of its own."""

    def __init__(self) -> None:
        self.mean, self.var, self.ema = torch.zeros(4), torch.ones(4), torch.zeros(4)
        self.state = {"ema": torch.zeros(4)}
        self.sizes: list[int] = []

    def __call__(self, x: Any) -> Any:
        self.sizes.append(len(x))
        self.ema = 0.9 * self.ema + x.mean(0)
        self.state["ema"] = 0.9 * self.state["ema"] + x.mean(0)
        self.state["last"] = self.last = x
        return F.batch_norm(x, self.mean, self.var, training=True)


def _functional() -> tuple[Callable[..., Any], Callable[[], list[Tensor]]]:
    """A function with buffers in its closure, and a look at them."""
    mean, var, ema = torch.zeros(4), torch.ones(4), torch.zeros(4)
    counts = np.zeros(3)

    def model(x: Any) -> Any:
        nonlocal ema
        ema = 0.9 * ema + x.mean(0)
        counts[0] += 1
        return F.batch_norm(x, mean, var, training=True)

    return model, lambda: [mean, var, ema, torch.from_numpy(counts)]


@pytest.mark.parametrize("name", RUNS)
def test_tensors_of_functions_and_objects_are_the_same_afterwards(name: str) -> None:
    model = Functional()
    kept = [model.mean, model.var, model.ema, model.state["ema"]]
    ignoring(RUNS[name], model, noisy())
    now = [model.mean, model.var, model.ema, model.state["ema"]]
    assert all(a is b for a, b in zip(kept, now, strict=True))
    assert [float(t.sum()) for t in now] == [0, 4, 0, 0]
    assert "last" not in model.state
    assert not hasattr(model, "last")
    assert model.sizes == []
    function, look = _functional()
    ignoring(RUNS[name], function, noisy())
    assert [float(t.sum()) for t in look()] == [0, 4, 0, 0]


def test_modules_among_the_globals_of_a_function_are_found() -> None:
    ignoring(RUNS["diagonal"], _by_global, noisy())
    ignoring(RUNS["samples"], lambda x: _by_global(x), noisy())
    assert GLOBAL[1].num_batches_tracked == 0


def test_threads_leave_the_model_as_it_was() -> None:
    model, x, errors = Busy().train(), noisy(), []
    before = snapshot(model)

    def run() -> None:
        try:
            for _ in range(5):
                ua.propagate(model, x, "diagonal")
        except Exception as error:
            errors.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert snapshot(model) == before


class Entered(nn.Module):
    """Changes its state, then waits inside of forward until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.state = "before"

    def forward(self, x: Any) -> Any:
        self.state = "changed"
        self.inside.set()
        assert self.go_on.wait(30)
        return x * 2


def test_a_thread_that_comes_in_late_does_not_take_the_change_for_the_state_before() -> None:
    model, x = Entered(), noisy()
    first = threading.Thread(target=ua.propagate, args=(model, x, "diagonal"))
    second = threading.Thread(target=ua.propagate, args=(model, x, "diagonal"))
    first.start()
    assert model.inside.wait(30)
    model.inside.clear()
    second.start()
    assert model.inside.wait(30)
    model.go_on.set()
    first.join()
    second.join()
    assert model.state == "before"


class Random(nn.Module):
    """Uses every generator, and has some of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(1)
        self.python = random.Random(1)
        self.numpy = np.random.default_rng(1)

    def forward(self, x: Any) -> Any:
        torch.rand(3)
        torch.rand(3, generator=self.own)
        random.random()
        np.random.rand()
        self.python.random()
        self.numpy.random()
        return x * 2


@pytest.mark.parametrize("name", RUNS)
def test_no_generator_is_moved(name: str) -> None:
    model = Random()

    def numbers() -> list[Any]:
        return [
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            model.own.get_state().tolist(),
            model.python.getstate(),
            model.numpy.bit_generator.state,
        ]

    before = numbers()
    ignoring(RUNS[name], model, noisy())
    assert numbers() == before


def test_linear_moves_no_generator_when_dropout_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    before = torch.get_rng_state()
    ignoring(RUNS["linear"], model, noisy())
    assert torch.equal(torch.get_rng_state(), before)


class Switching(nn.Module):
    """Changes the settings of the process and of its thread."""

    def forward(self, x: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_enabled("cpu", False)
        torch.set_float32_matmul_precision("medium")
        warnings.simplefilter("error", ResourceWarning)
        return x * 2


@pytest.mark.parametrize("name", ["auto", "diagonal", "hybrid", "samples", "coverage", "compare"])
def test_settings_are_the_same_afterwards(name: str) -> None:
    def settings() -> list[Any]:
        return [
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_float32_matmul_precision(),
            torch.get_default_device(),
            list(warnings.filters),
        ]

    before = settings()
    try:
        RUNS[name](Switching(), noisy())
        assert settings() == before
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")


def test_the_default_device_is_the_same_afterwards() -> None:
    def model(x: Any) -> Any:
        torch.set_default_device("meta")
        return x * 2

    try:
        ua.propagate(model, noisy(), "diagonal")
        assert torch.get_default_device().type == "cpu"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("name", ["linear", "hybrid", "samples"])
def test_gradients_of_parameters_are_left_alone(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model(torch.randn(2, 4)).sum().backward()
    grads = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters()}  # type: ignore[union-attr]
    ignoring(RUNS[name], model, noisy())
    for key, parameter in model.named_parameters():
        assert parameter.grad is grads[key][0]
        assert torch.equal(parameter.grad, grads[key][1])  # type: ignore[arg-type]


def test_an_embedding_with_bounded_norm_keeps_its_weights() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4, max_norm=0.1)

        def forward(self, x: Any) -> Any:
            return x + self.table(torch.arange(5))[:1]

    model = Model()
    before = model.table.weight.clone()
    ua.propagate(model, noisy(), "samples")
    assert torch.equal(model.table.weight, before)


class Decays(nn.Module):
    """It writes to its parameters, from some call on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.calls, self.first = itertools.count(1), first

    def forward(self, x: Any) -> Any:
        if next(self.calls) >= self.first:
            with torch.no_grad():
                self.linear.weight.mul_(0.9)
        return self.linear(x)


@pytest.mark.parametrize("name", RUNS)
def test_parameters_that_a_model_writes_to_are_put_back(name: str) -> None:
    model = Decays(first=1)
    weight = model.linear.weight.detach().clone()
    for _ in range(2):  # what the first has found out, the second knows
        ignoring(RUNS[name], model, noisy())
        assert torch.equal(model.linear.weight, weight)


def test_a_model_that_turns_out_to_write_to_its_parameters_is_named() -> None:
    with pytest.warns(UserWarning, match=r"writes to its own parameters.*linear\.weight"):
        ua.propagate(Decays(first=5), noisy(), "diagonal")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_keep_their_attributes() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0
            self.register_buffer("total", torch.zeros(()))
            self.register_buffer("assigned", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            self.total.add_(1.0)
            self.assigned = self.assigned + 1.0
            return x * 2

    model = nn.Sequential(torch.jit.script(Counter()), nn.Tanh())
    ua.propagate(model, noisy(), "samples")
    scripted: Any = model[0]
    assert (scripted.n, float(scripted.total), float(scripted.assigned)) == (0, 0.0, 0.0)


def test_programs_of_torch_export_keep_their_buffers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.steps.add_(1)
            return x * 2 + self.steps * 0

    program = torch.export.export(Model(), (torch.randn(6, 4),))
    ua.propagate(program, noisy(), "diagonal")
    assert float(program.state_dict["steps"]) == 0


def test_lazy_modules_are_refused_until_they_have_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="run it once on a plain tensor"):
        ua.propagate(model, noisy(), "diagonal")
    model(torch.randn(2, 4))
    assert ua.propagate(model, noisy(), "diagonal").shape == (6, 3)


def test_an_export_leaves_the_model_as_it_is(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU()).eval()
    before, x = snapshot(model), noisy()
    ua.export(ua.as_module(model), tmp_path / "model.pt2", x.loc, x.cov.var)
    assert snapshot(model) == before


# ------------------------------------------------------------ the warning


def warned(model: Any, method: str = "diagonal") -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ua.propagate(model, noisy(), method)
    return [str(each.message) for each in caught if "training mode" in str(each.message)]


def test_training_mode_is_said_once_with_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)).train()
    (message,) = warned(model, "auto")
    assert "'1' (BatchNorm1d)" in message
    assert "'2' (Dropout)" in message
    assert "model.eval()" in message


def test_a_comparison_says_it_once() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ua.compare(model, noisy(), ["diagonal", "linear"], samples=100, repeats=1)
    assert len([each for each in caught if "training mode" in str(each.message)]) == 1


def test_the_warning_points_to_the_line_that_called() -> None:
    with pytest.warns(UserWarning, match="training mode") as caught:
        ua.propagate(nn.Sequential(nn.BatchNorm1d(4)), noisy(), "diagonal")
    assert caught[0].filename == __file__


class Own(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.dropout(x, 0.5, self.training)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.LayerNorm(3)), False),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), False),
        (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), False),
        (nn.Sequential(nn.InstanceNorm1d(4), nn.Flatten()), False),
        (nn.Sequential(nn.BatchNorm1d(4)), True),
        (nn.Sequential(nn.Dropout(0.5)), True),
        (nn.Sequential(Own()), True),
        (_by_global, True),
    ],
)
def test_training_mode_is_said_only_where_it_matters(model: Any, expected: bool) -> None:
    assert bool(warned(model, "diagonal")) == expected
    if isinstance(model, nn.Module):
        assert not warned(model.eval(), "diagonal")


def test_dropout_that_was_turned_on_in_evaluation_mode_is_meant() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    model[1].train()
    assert not warned(model, "diagonal")


def test_what_a_global_hook_writes_to_torchs_own_layers_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    seen = torch.zeros(())
    model[0].register_buffer("seen", seen)

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if "seen" in module._buffers:
            seen.add_(1)

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        ua.propagate(model, ua.Gaussian(torch.randn(2, 4), std=0.1), "samples", samples=8)
    finally:
        handle.remove()
    assert float(seen) == 0
