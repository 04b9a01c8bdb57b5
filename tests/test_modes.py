"""Propagation in the modes that torch can be in: each gives the same answer, or refuses and says why."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap

import uaprop as ua

from .versions import IS_CURRENT, compiles

OPTIONS: dict[str, dict[str, Any]] = {
    "diagonal": {},
    "calibrated": {},
    "sketch": {"probes": 8},
    "full": {},
    "adjoint": {"probes": 8},
    "hybrid": {"samples": 8},
    "linear": {},
    "samples": {"samples": 64},
}
METHODS = list(OPTIONS)
WITH_GRADIENTS = ["diagonal", "calibrated", "sketch", "full"]
FINAL = ["adjoint", "hybrid", "linear", "samples", "auto"]


class Network(nn.Module):
    """Convolution, normalisation, a maximum and a smooth function."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4).eval()  # in training mode it mixes the batch
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(36, 5)

    def forward(self, x: Any) -> Any:
        h = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return torch.tanh(self.head(self.dropout(h).flatten(1)))


@pytest.fixture(scope="module")
def model() -> Network:
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture(scope="module")
def picture() -> Tensor:
    return torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def run(model: Network, picture: Tensor) -> Callable[..., ua.Gaussian]:
    """Propagate the picture, or other means and variances, by a method."""
    calibration = ua.calibrate(model, picture, std=0.1)
    given = picture

    def propagate(method: str, mean: Tensor = given, var: Any = 0.01) -> ua.Gaussian:
        options = (
            {"calibration": calibration} if method == "calibrated" else OPTIONS.get(method, {})
        )
        return ua.propagate(model, ua.Gaussian(mean, var), method, **options)

    return propagate


def same(found: ua.Gaussian, wanted: ua.Gaussian, rtol: float = 1e-5) -> None:
    assert (found.dtype, found.cov.var.dtype) == (wanted.dtype, wanted.cov.var.dtype)
    torch.testing.assert_close(found.loc.detach(), wanted.loc.detach(), rtol=rtol, atol=1e-6)
    torch.testing.assert_close(found.cov.var.detach(), wanted.cov.var.detach(), rtol=rtol, atol=0)


# ------------------------------------------------------------ inference mode


@pytest.mark.parametrize("method", METHODS)
def test_inference_mode(run, picture: Tensor, method: str) -> None:
    wanted = run(method)
    with torch.inference_mode():
        found = run(method)
        made_inside = run(method, picture * 1.0)
        assert not found.loc.requires_grad
    same(found, wanted, rtol=5e-4)  # without gradients the same formulas in another order
    same(made_inside, wanted, rtol=5e-4)


def test_in_place_operations_and_views_in_inference_mode() -> None:
    with torch.inference_mode():
        x = ua.Gaussian(torch.zeros(2, 3), 1.0)
        x[0].add_(2.0).relu_()
        x.mul_(2.0)
    assert x.loc[0].gt(4).all()
    assert x.loc[1].eq(0).all()


@pytest.mark.parametrize("method", ["hybrid", "adjoint", "linear", "samples"])
def test_what_was_made_in_inference_mode_is_taken_outside_of_it(run, picture, method: str) -> None:
    with torch.inference_mode():
        made = picture.clone()
    same(run(method, made), run(method))


def test_what_was_made_in_inference_mode_is_copied_where_gradients_are_recorded(
    run, picture: Tensor
) -> None:
    with torch.inference_mode():
        made = picture.clone()
    same(run("diagonal", made), run("diagonal"))
    with torch.no_grad():
        same(run("diagonal", made), run("diagonal"))


FIRST_IN_INFERENCE_MODE = """
import torch, torch.nn.functional as F, uaprop as ua
functions = [F.relu, torch.sigmoid, F.gelu, F.mish, F.elu, F.hardswish, torch.exp, lambda x: x.softmax(1)]
def total(function, grad):
    mean = torch.linspace(-2, 2, 12).reshape(2, 6).requires_grad_(grad)
    factors = torch.linspace(-1, 1, 36).reshape(3, 2, 6)
    y, z = function(ua.Gaussian(mean, 0.5)), function(ua.Gaussian.from_factors(mean, factors))
    return mean, y.loc.sum() + y.cov.var.sum() + z.loc.sum() + z.cov.var.sum()
with torch.inference_mode():
    for function in functions:
        total(function, False)
for function in functions:
    mean, value = total(function, True)
    value.backward()
    assert mean.grad.isfinite().all()
print("fine")
"""


def test_nothing_kept_from_inference_mode_stands_in_the_way_of_gradients() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_IN_INFERENCE_MODE], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "fine", done.stderr


# ------------------------------------------------------------ autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", METHODS)
def test_autocast_leaves_moments_alone(run, method: str, dtype: torch.dtype) -> None:
    wanted = run(method)
    with torch.autocast("cpu", dtype=dtype):
        found = run(method)
        dense, draws = found.covariance(), found.sample(2)
        if found.provenance is not None and found.provenance.shares:
            part = found.attribution(1)
            torch.testing.assert_close(part, wanted.attribution(1), rtol=1e-6, atol=1e-12)
    same(found, wanted, rtol=1e-6)
    assert dense.dtype == draws.dtype == torch.float32
    torch.testing.assert_close(dense, wanted.covariance(), rtol=1e-6, atol=1e-9)


def test_small_variances_survive_autocast_to_float16(model: Network, picture: Tensor) -> None:
    x = ua.Gaussian(picture, 1e-10)  # zero in float16
    with torch.autocast("cpu", dtype=torch.float16):
        y = model(x)
        later = F.relu(y)
        assert later.cov.var is not None  # computed here
    assert y.cov.var.gt(0).all()
    same(y, model(x), rtol=1e-6)
    same(later, F.relu(model(x)), rtol=1e-6)


@compiles
def test_small_variances_survive_in_a_compiled_program() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = ua.Gaussian(torch.ones(2, 4), 1e-10)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.float16):
            found = compiled(x)
        same(found, model(x))


def test_the_maximum_still_comes_first_under_autocast(picture: Tensor) -> None:
    x = ua.Gaussian(picture, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = F.max_pool2d(F.relu(x), 2)
    same(found, F.max_pool2d(F.relu(x), 2), rtol=1e-6)


def test_plain_tensors_that_autocast_made_half_meet_a_gaussian(model: Network) -> None:
    x = ua.Gaussian(torch.ones(2, 3), 0.5)
    matrix = torch.eye(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = matrix @ matrix
        assert plain.dtype == torch.bfloat16
        found = torch.matmul(x, plain)
    same(found, x)


# ------------------------------------------------------------ torch.func


@pytest.mark.parametrize("method", ["diagonal", "calibrated"])
def test_vmap(run, picture: Tensor, method: str) -> None:
    var = 0.01 + 0.02 * picture

    def one(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        y = run(method, mean.unsqueeze(0), var.unsqueeze(0))
        return y.loc.squeeze(0), y.cov.var.squeeze(0)

    mean, spread = vmap(one)(picture, var)
    alone = [one(m, v) for m, v in zip(picture, var, strict=True)]
    torch.testing.assert_close(mean, torch.stack([m for m, _ in alone]))
    torch.testing.assert_close(spread, torch.stack([v for _, v in alone]))


def test_vmap_over_a_gaussian(model: Network, picture: Tensor) -> None:
    x = ua.Gaussian(torch.stack([picture, 1 - picture]), 0.01 + picture.square())
    found = vmap(model)(x)
    assert isinstance(found, ua.Gaussian)
    assert found.shape == (2, 2, 5)
    same(found[1], model(x[1]))


@pytest.mark.parametrize("method", WITH_GRADIENTS)
def test_grad_by_the_variance(run, picture: Tensor, method: str) -> None:
    if method == "calibrated" and not IS_CURRENT:
        pytest.skip("an older torch has no values within torch.func.grad, also not of the weights")

    def spread(var: Tensor) -> Tensor:
        return run(method, picture, var).cov.var.sum()

    var = (0.01 + 0.02 * picture).requires_grad_()
    (wanted,) = torch.autograd.grad(spread(var), var)
    assert wanted.abs().max() > 0
    torch.testing.assert_close(grad(spread)(var.detach()), wanted)


@pytest.mark.parametrize("method", ["diagonal", "sketch", "full"])
def test_grad_by_the_weights(model: Network, picture: Tensor, method: str) -> None:
    x = ua.Gaussian(picture, 0.01)
    weights = dict(model.named_parameters())

    def spread(weights: dict[str, Tensor]) -> Tensor:
        def called(x: Any) -> Any:
            return functional_call(model, weights, (x,))

        return ua.propagate(called, x, method, **OPTIONS[method]).cov.var.sum()

    wanted = torch.autograd.grad(spread(weights), list(weights.values()), materialize_grads=True)
    found = grad(spread)({name: weight.detach() for name, weight in weights.items()})
    for weight, gradient in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(weight, gradient, rtol=1e-3, atol=1e-5)
    assert found["conv.weight"].abs().max() > 0


def test_gradients_of_each_sample(model: Network, picture: Tensor) -> None:
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def spread(weights: dict[str, Tensor], mean: Tensor) -> Tensor:
        x = ua.Gaussian(mean.unsqueeze(0), 0.01)
        return functional_call(model, weights, (x,)).cov.var.sum()

    found = vmap(grad(spread), in_dims=(None, 0))(weights, picture)
    for i, mean in enumerate(picture):
        for name, wanted in grad(spread)(weights, mean).items():
            torch.testing.assert_close(found[name][i], wanted, rtol=1e-4, atol=1e-7)


def test_forward_derivatives(run, picture: Tensor) -> None:
    def spread(var: Tensor) -> Tensor:
        return run("diagonal", picture[:1], var.expand(1, 1, 8, 8)).cov.var

    var = torch.full((1,), 0.01)
    backwards = jacrev(spread)(var)
    torch.testing.assert_close(jacfwd(spread)(var), backwards)
    torch.testing.assert_close(jvp(spread, (var,), (var,))[1], 0.01 * backwards.squeeze(-1))


@pytest.mark.parametrize("method", FINAL)
def test_grad_of_an_answer_without_gradients_is_refused(run, picture, method: str) -> None:
    """It would be zero, and nothing would tell."""
    with pytest.raises(ua.UnsupportedOperation, match=rf"torch\.func\.grad: .*'{method}' carries"):
        grad(lambda var: run(method, picture, var).cov.var.sum())(0.01 + picture)


@pytest.mark.parametrize("method", [*FINAL, "sketch", "full"])
def test_vmap_over_a_method_that_looks_at_values_is_refused(run, picture, method: str) -> None:
    with pytest.raises(ua.UnsupportedOperation, match=rf"torch\.vmap: method '{method}' looks"):
        vmap(lambda mean: run(method, mean.unsqueeze(0)).loc, randomness="same")(picture)


@pytest.mark.parametrize("method", [*FINAL, "sketch", "full"])
def test_forward_derivatives_that_a_method_lacks_are_refused(run, picture, method: str) -> None:
    with pytest.raises(ua.UnsupportedOperation, match=rf"torch\.func\.jvp: method '{method}'"):
        jvp(lambda mean: run(method, mean).loc, (picture,), (picture,))


def test_a_negative_variance_is_found_inside_of_grad() -> None:
    with pytest.raises(ValueError, match="negative"):
        grad(lambda var: ua.Gaussian(torch.zeros(2), var).loc.sum())(torch.tensor([1.0, -1.0]))


# ------------------------------------------------------------ threads


@pytest.mark.parametrize("method", [*METHODS, "auto"])
def test_threads_give_the_answers_of_one_after_the_other(method: str, picture: Tensor) -> None:
    """With dropout in training mode: its masks come from torch's one generator."""
    torch.manual_seed(3)
    dropout = 0.0 if method == "linear" else 0.3  # "linear" takes whatever is drawn next
    models = [Network(dropout) for _ in range(4)]
    options = [{**OPTIONS.get(method, {})} for _ in models]
    if method == "calibrated":
        options = [{"calibration": ua.calibrate(model, picture, std=0.1)} for model in models]
    elif method in ("sketch", "adjoint", "hybrid", "samples"):
        options = [{**given, "seed": i} for i, given in enumerate(options)]

    def work(number: int) -> ua.Gaussian:
        x = ua.Gaussian(picture, 0.01 * (number + 1))
        return ua.propagate(models[number], x, method, **options[number])

    one_by_one = [work(number) for number in range(4)]
    state, filters = torch.random.get_rng_state(), list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(work, range(4)))
    for found, wanted in zip(at_once, one_by_one, strict=True):
        assert torch.equal(found.loc, wanted.loc)
        assert torch.equal(found.cov.var, wanted.cov.var)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert warnings.filters == filters


def test_a_thread_knows_nothing_of_another_ones_watch() -> None:
    """``unsupported="linearise"`` in one thread does not let through what another runs."""

    def both(x: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(lambda: torch.lgamma(ua.Gaussian(torch.ones(2), 0.1)))
            with pytest.raises(ua.UnsupportedOperation, match="lgamma"):
                other.result()
        return torch.lgamma(x)

    x = ua.Gaussian(torch.full((1, 2), 2.0), 0.01)
    y = ua.propagate(both, x, "sketch", unsupported="linearise")
    assert y.provenance is not None
    assert y.provenance.linearised == ("torch.lgamma",)
