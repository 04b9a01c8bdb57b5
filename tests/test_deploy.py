"""Models with error bars as modules: compiled, exported, and written to files that agree."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from typer.testing import CliRunner

import uaprop as ua
from uaprop.cli.app import app
from uaprop.demo import digits_cnn
from uaprop.deploy.opset import DECOMPOSITIONS

from .versions import IS_CURRENT, compiles

MEAN, VAR = torch.randn(2, 4, generator=torch.Generator().manual_seed(1)), torch.full((2, 4), 0.3)


class Small(nn.Module):
    """What Dynamo cannot follow on a Gaussian, a maximum after a rectifier, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> dict[str, Any]:
        h = torch.relu(self.layer(x))
        return {
            "largest": F.max_pool1d(h, 4),  # first: it asks for h before the rectifier
            "average": h.mean(1, keepdim=True),
            "pair": (torch.stack([x, h], 1), x @ self.layer.weight),
        }


class WithMask(nn.Module):
    """Further arguments, of which one is a keyword and one no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any, shift: Tensor, power: int, *, scale: Tensor) -> Any:
        total = x.sum(1, keepdim=True)
        return {"score": self.layer(x) + shift, "rest": [scale**power * total, scale]}


class TensorsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            raise TypeError("a tensor, please")
        return torch.relu(self.layer(x))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_agree(found: Any, wanted: Any, rtol: float = 1e-5) -> None:
    found, wanted = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * float(b.detach().abs().max()))


def calibrated(model: nn.Module, x: Tensor) -> ua.Calibration:
    return ua.calibrate(model, x, std=0.5, samples=16)


# ------------------------------------------------------------ eagerly


@pytest.mark.parametrize("method", ["diagonal", "sketch", "hybrid", "samples", "auto"])
def test_it_gives_what_propagate_gives(method: str) -> None:
    model = Small().eval().requires_grad_(False)
    found = ua.as_module(model, method)(MEAN, VAR)
    answer = ua.propagate(model, ua.Gaussian(MEAN, VAR), method=method)
    assert found.keys() == answer.keys()
    assert isinstance(found["pair"], tuple)
    for name in ("average", "largest"):
        mean, var = found[name]
        assert type(mean) is Tensor
        assert torch.equal(mean, answer[name].loc)
        assert torch.equal(var, answer[name].cov.var)


def test_variances_are_broadcast_and_checked() -> None:
    module = ua.as_module(nn.Linear(4, 2))
    assert_agree(module(MEAN, 0.3), module(MEAN, VAR))
    assert_agree(module(MEAN, torch.tensor(0.3)), module(MEAN, VAR))
    with pytest.raises(ValueError, match="negative"):
        module(MEAN, -VAR)


def test_the_random_argument_may_be_a_keyword() -> None:
    model = WithMask().eval()
    shift, scale = torch.randn(2, 3), torch.rand(3)
    answer = model(ua.Gaussian(MEAN, VAR), shift, 2, scale=scale)
    wanted = [(y.loc, y.cov.var) for y in (answer["score"], answer["rest"][0])] + [scale]
    assert_agree(ua.as_module(model)(MEAN, VAR, shift, 2, scale=scale), wanted)
    by_name = ua.as_module(model, input="x")
    assert_agree(by_name(MEAN, VAR, shift=shift, power=2, scale=scale), wanted)


def test_the_model_is_held() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    module = ua.as_module(model)
    assert not module.training
    assert module.model is model
    assert set(module.state_dict()) == {"model.0.weight", "model.0.bias"}
    before = module(MEAN, VAR)
    module.train()
    assert model[1].training
    assert (module(MEAN, VAR)[1] > before[1]).all()  # dropout's own noise
    module.eval()
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(module(MEAN, VAR)[1], 4 * before[1])
    module(MEAN, VAR)[1].sum().backward()
    assert model[0].weight.grad is not None


def test_what_cannot_be_asked_for_is_refused_at_once() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="no method 'diagnoal'"):
        ua.as_module(model, "diagnoal")
    with pytest.raises(TypeError, match="no option 'samples'"):
        ua.as_module(model, "diagonal", samples=3)
    with pytest.raises(TypeError, match="needs the option 'calibration'"):
        ua.as_module(model, "calibrated")
    with pytest.raises(ValueError, match="cannot linearise"):
        ua.as_module(model, unsupported="linearise")
    with pytest.raises(ValueError, match="other weights"):
        ua.as_module(model, "calibrated", calibration=calibrated(nn.Linear(4, 2), MEAN))


# ------------------------------------------------------------ compiled


@compiles
@pytest.mark.parametrize("method", ["diagonal", "calibrated"])
def test_compiled_it_agrees_with_eager(method: str) -> None:
    model = Small().eval().requires_grad_(False)
    options = {"calibration": calibrated(model, MEAN)} if method == "calibrated" else {}
    module = ua.as_module(model, method, **options)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_agree(compiled(MEAN, VAR), module(MEAN, VAR))


@pytest.mark.skipif(IS_CURRENT, reason="what an older torch does instead")
def test_an_older_torch_says_so_and_runs_it_eagerly() -> None:
    module = ua.as_module(Small().eval().requires_grad_(False))
    expected = module(MEAN, VAR)
    with pytest.raises(Exception, match=r"from torch 2\.13 on"):
        torch.compile(module, fullgraph=True, backend="eager")(MEAN, VAR)
    assert_agree(torch.compile(module, backend="eager")(MEAN, VAR), expected)


@compiles
def test_inductor_agrees_with_eager() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval().requires_grad_(False)
    module = ua.as_module(model)
    assert_agree(torch.compile(module, fullgraph=True)(MEAN, VAR), module(MEAN, VAR))


@compiles
def test_compiled_it_takes_plain_tensors() -> None:
    x = ua.Gaussian(MEAN, VAR)
    module = ua.as_module(nn.Linear(4, 3).eval().requires_grad_(False))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"give x\.mean\.clone\(\) and x\.var\.clone\(\)"):
        compiled(x.mean, x.var)
    torch._dynamo.reset()
    assert_agree(compiled(x.mean.clone(), x.var.clone()), module(x.mean, x.var))


@compiles
def test_compiled_it_follows_weights_and_modes_and_has_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    module = ua.as_module(model)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    compiled(MEAN, VAR)
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert_agree(compiled(MEAN, VAR), module(MEAN, VAR))
    model[1].train()
    assert_agree(compiled(MEAN, VAR), module(MEAN, VAR))
    (wanted,) = torch.autograd.grad(module(MEAN, VAR)[1].sum(), model[0].weight)
    (found,) = torch.autograd.grad(compiled(MEAN, VAR)[1].sum(), model[0].weight)
    torch.testing.assert_close(found, wanted)


@compiles
def test_what_has_no_rule_is_named_by_the_compiler_too() -> None:
    module = ua.as_module(lambda x: torch.cumprod(x, 1))
    with pytest.raises(Exception, match=r"torch\.cumprod.*no closed form"):
        torch.compile(module, fullgraph=True, backend="aot_eager")(MEAN, VAR)


@compiles
@pytest.mark.parametrize("method", ["hybrid", "samples", "sketch", "auto"])
def test_other_methods_refuse_to_be_traced(method: str) -> None:
    module = ua.as_module(nn.Linear(4, 2).eval(), method)
    message = f"method '{method}'.*Use method=\"diagonal\""
    with pytest.raises(Exception, match=message):
        torch.compile(module, fullgraph=True, backend="aot_eager")(MEAN, VAR)
    with pytest.raises(ua.UnsupportedOperation, match=message):
        torch.export.export(module, (MEAN, VAR), strict=False)


# ------------------------------------------------------------ exported


@pytest.mark.parametrize("method", ["diagonal", "calibrated"])
def test_exported_it_takes_any_batch(method: str) -> None:
    model = Small().eval()
    options: dict[str, Any] = {}
    if method == "calibrated":
        options = {"calibration": calibrated(model, MEAN), "outside": "ignore"}
    module = ua.as_module(model, method, **options)
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        module, (MEAN, VAR), dynamic_shapes=({0: batch}, {0: batch}), strict=False
    )
    mean = torch.randn(5, 4)
    assert_agree(program.module()(mean, mean.square()), module(mean, mean.square()))
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    plain = ("aten.", "<built-in function", "_operator.")
    assert all(target.startswith(plain) for target in targets), targets


def test_training_mode_is_refused(tmp_path: Path) -> None:
    module = ua.as_module(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)).train())
    with pytest.raises(RuntimeError, match=r"call \.eval\(\)"):
        torch.export.export(module, (MEAN, VAR), strict=False)
    with pytest.raises(RuntimeError, match=r"call \.eval\(\)"):
        ua.export(module, tmp_path / "model.pt2", MEAN, VAR)
    assert not list(tmp_path.iterdir())


def test_onnx_of_the_digits_agrees(tmp_path: Path) -> None:
    module = ua.as_module(digits_cnn())
    images = torch.rand(2, 1, 8, 8)
    assert ua.export(module, tmp_path / "digits.onnx", images, 0.05) < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "digits.onnx")
    assert [output.name for output in session.get_outputs()] == ["output.mean", "output.var"]
    images = torch.rand(5, 1, 8, 8)
    found = session.run(None, {"mean": images.numpy(), "var": (0.1 * images).numpy()})
    assert_agree([torch.from_numpy(f) for f in found], module(images, 0.1 * images), rtol=1e-4)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_further_arguments_and_outputs_keep_their_places(suffix: str, tmp_path: Path) -> None:
    module = ua.as_module(WithMask().eval())
    shift, scale = torch.randn(2, 3), torch.rand(3)
    error = ua.export(module, tmp_path / f"model{suffix}", MEAN, 0.3, shift, 2, scale=scale)
    assert error < 1e-5
    assert [file.name for file in tmp_path.iterdir()] == [f"model{suffix}"]
    if suffix == ".pt2":
        program = torch.export.load(tmp_path / "model.pt2").module()
        wanted = module(MEAN, VAR, shift, 2, scale=scale)
        assert_agree(program(MEAN, VAR, shift, scale), wanted)
    else:
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        names = [output.name for output in session.get_outputs()]
        assert names == ["score.mean", "score.var", "rest.0.mean", "rest.0.var", "rest.1"]


def test_a_model_of_tensors_goes_by_its_graph(tmp_path: Path) -> None:
    model = TensorsOnly().eval()
    module = ua.as_module(model)
    with pytest.raises(ua.UnsupportedOperation, match=r"a tensor, please.*capture it first"):
        torch.export.export(module, (MEAN, VAR), strict=False)
    assert ua.export(module, tmp_path / "model.pt2", MEAN, VAR) < 1e-5
    program = torch.export.export(model, (MEAN,))
    assert_agree(ua.as_module(program)(MEAN, VAR), module(MEAN, VAR))


class Unsteady(nn.Module):
    """Gives something else when it is traced: what a wrong export looks like."""

    def __init__(self, eager: Callable[..., Any], traced: Callable[..., Any]) -> None:
        super().__init__()
        self.eager, self.traced = eager, traced

    def forward(self, x: Any) -> Any:
        return (self.traced if torch.compiler.is_compiling() else self.eager)(x)


class Shifted(nn.Module):
    """Adds a vector, as a layer norm's or a head's own bias is."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.arange(4.0))

    def forward(self, x: Any) -> Any:
        return self.bias - (torch.relu(x + self.bias) - 2.0 * self.bias)


def test_a_vector_that_is_added_does_not_restrict_the_batch(tmp_path: Path) -> None:
    module = ua.as_module(Shifted().eval())
    assert ua.export(module, tmp_path / "model.pt2", MEAN, VAR) < 1e-6
    program = torch.export.load(tmp_path / "model.pt2").module()
    mean = torch.randn(4, 4)  # as many items as the vector has elements
    assert_agree(program(mean, mean.square()), module(mean, mean.square()))


SMALL = torch.tensor([1.0, 1.0, 1.0, 0.1])
WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any], Tensor]] = {
    "mean and variance": (lambda x: 2.0 * x, lambda x: 3.0 * x, MEAN),
    "the mean alone": (lambda x: x, lambda x: x + 1.0, MEAN),
    "the variance alone": (lambda x: x, lambda x: 2.0 * x, torch.zeros_like(MEAN)),
    "a small variance beside larger ones": (
        lambda x: x * SMALL,
        lambda x: x * SMALL * torch.tensor([1.0, 1.0, 1.0, 1.001]),
        torch.zeros_like(MEAN),
    ),
    "no numbers": (lambda x: x, lambda x: x * math.nan, MEAN),
    "no number in one place": (
        lambda x: x,
        lambda x: x + torch.tensor([0.0, 0.0, math.nan, 0.0]),
        MEAN,
    ),
    "the second of two outputs no number": (
        lambda x: (x, 2.0 * x),
        lambda x: (x, x * math.nan),
        MEAN,
    ),
    "batches of one": (lambda x: x, lambda x: x + (x.shape[0] - 3), MEAN),
    "batches of three": (lambda x: x, lambda x: x + (x.shape[0] - 1), MEAN),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_wrong_is_not_left_behind(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_text("an older file")
    eager, traced, mean = WRONG[name]
    module = ua.as_module(Unsteady(eager, traced).eval())
    with pytest.raises(RuntimeError, match="no file was written"):
        ua.export(module, tmp_path / "model.pt2", mean, VAR)
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    assert (tmp_path / "model.pt2").read_text() == "an older file"


def test_bad_files_and_inputs_are_refused(tmp_path: Path) -> None:
    module = ua.as_module(nn.Linear(4, 2).eval())
    with pytest.raises(ValueError, match=r"neither in \.pt2"):
        ua.export(module, tmp_path / "model.h5", MEAN, VAR)
    with pytest.raises(ValueError, match="first dimension is the batch"):
        ua.export(module, tmp_path / "model.pt2", MEAN[0], 0.3)
    with pytest.raises(ua.UnsupportedOperation, match="hybrid"):
        ua.export(ua.as_module(nn.Linear(4, 2).eval(), "hybrid"), tmp_path / "m.pt2", MEAN, VAR)


# ------------------------------------------------------------ what ONNX lacks


@pytest.mark.parametrize(
    ("operation", "oracle", "low", "high", "accuracy"),
    [
        (torch.ops.aten.erfc.default, special.erfc, -6, 9, 1e-5),
        (torch.ops.aten.special_erfcx.default, special.erfcx, -6, 100, 3e-6),
        (torch.ops.aten.log1p.default, special.log1p, -0.99, 100, 5e-7),
        (torch.ops.aten.expm1.default, special.expm1, -100, 80, 5e-7),
    ],
)
def test_functions_keep_their_digits(
    operation: Any, oracle: Callable[..., Any], low: float, high: float, accuracy: float
) -> None:
    far = torch.linspace(low, high, 20001)
    near = torch.logspace(-20, -1, 2001)
    x = torch.cat([far, near, -near, torch.zeros(1)])
    wanted = torch.from_numpy(oracle(x.double().numpy()))
    found = DECOMPOSITIONS[operation](x).double()
    error = (found - wanted).abs() / wanted.abs().clamp_min(1e-37)
    assert float(error.max()) < accuracy
    edges = torch.tensor([math.inf, -math.inf, math.nan])
    torch.testing.assert_close(DECOMPOSITIONS[operation](edges), operation(edges), equal_nan=True)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil"),
    [(2, 2, 0, False), (3, 2, 1, True), (3, 2, 0, True), (2, 3, 1, True), (3, 1, 1, False)],
)
def test_average_pooling_keeps_its_divisor(
    kernel: int, stride: int, padding: int, ceil: bool
) -> None:
    x = torch.randn(2, 3, 7, 8)
    wanted = F.avg_pool2d(x, kernel, stride, padding, ceil, True, 3)
    pool = DECOMPOSITIONS[torch.ops.aten.avg_pool2d.default]
    found = pool(x, [kernel, kernel], [stride, stride], [padding], ceil, True, 3)
    torch.testing.assert_close(found, wanted)


# ------------------------------------------------------------ the command


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_the_command_writes_and_checks_a_file(tmp_path: Path) -> None:
    file = tmp_path / "digits.pt2"
    done = command("uaprop.demo:digits_cnn", "--to", file, "--shape", "1,1,8,8")
    assert done.exit_code == 0, done.output
    assert "any batch size; differs from eager mode by" in done.output
    mean, var = torch.export.load(file).module()(torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8))
    assert mean.shape == var.shape == (4, 10)


def test_the_command_takes_a_calibration(tmp_path: Path) -> None:
    model = digits_cnn()
    images = torch.rand(4, 1, 8, 8)
    calibrated(model, images).save(tmp_path / "factors.safetensors")
    given = ("uaprop.demo:digits_cnn", "--shape", "1,1,8,8", "--method", "calibrated")
    done = command(
        *given, "--to", tmp_path / "model.pt2", "--calibration", tmp_path / "factors.safetensors"
    )
    assert done.exit_code == 0, done.output
    done = command(*given, "--to", tmp_path / "other.pt2")
    assert done.exit_code == 2
    assert not (tmp_path / "other.pt2").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--to", "model.h5"], 2, "ends in none of"),
        (["--to", "model.pt2", "--method", "hybrid"], 2, "is none of"),
        (["--to", "model.pt2", "--shape", "1,x"], 2, "is no shape"),
        (["--to", "model.pt2", "--shape", "1,3,8,8"], 1, "channels"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("uaprop.demo:digits_cnn", *arguments)
    assert done.exit_code == code
    assert message in done.output
    assert not list(tmp_path.iterdir())


@compiles
def test_the_compiler_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, torch, uaprop as ua; ua.as_module(torch.nn.ReLU())(torch.ones(1), 1.0); "
    code += "print({'torch._dynamo', 'onnx', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_constants_are_kept_in_evaluation_and_follow_the_weights() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()
    module = ua.as_module(model).eval()
    mean, var = torch.randn(2, 1, 6, 6), torch.rand(2, 1, 6, 6)
    with torch.no_grad():
        for _ in range(2):
            expected = ua.propagate(model, ua.Gaussian(mean, var), method="diagonal")
            for _ in range(2):
                found = module(mean, var)
                assert torch.equal(found[0], expected.loc)
                assert torch.equal(found[1], expected.cov.var)
            assert len(module._constants) == 2
            model[0].weight.mul_(2)
        copied = copy.deepcopy(module)
        assert len(copied._constants) == 0
        model[0].weight.data.mul_(2)  # nobody can see that
        module.eval()
        expected = ua.propagate(model, ua.Gaussian(mean, var), method="diagonal")
        assert torch.equal(module(mean, var)[1], expected.cov.var)
        module.train()
        assert len(module._constants) == 0
