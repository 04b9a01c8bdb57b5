"""The other entrance: models that a Gaussian cannot pass through go by the graph of torch.export."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua
from uaprop.dispatch.graph import CapturedModel


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return torch.relu(x) + 1


class Picky(nn.Module):
    """Takes tensors only, scripts a part, unpacks its shape and writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor([0.5, -1.0, 2.0, 1.5]))
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor, factor: float = 1.0) -> dict[str, Tensor]:
        assert isinstance(x, Tensor), "give me a tensor"
        batch, *_ = x.shape
        y = scripted(self.norm(self.conv(x)))
        y = F.interpolate(y, scale_factor=2.0)
        y[:, 0] = 0.25
        y = y[..., 1:-1, 1:3].mean((2, 3)) * self.scale
        return {"scores": (self.head(y) * factor).reshape(batch, 2), "first": y[:, 0]}


class Free(Picky):
    """The same without what a Gaussian stumbles over."""

    def forward(self, x: Tensor, factor: float = 1.0) -> dict[str, Tensor]:
        y = torch.relu(self.norm(self.conv(x))) + 1
        y = F.interpolate(y, scale_factor=2.0)
        y[:, 0] = 0.25
        y = y[..., 1:-1, 1:3].mean((2, 3)) * self.scale
        return {"scores": self.head(y) * factor, "first": y[:, 0]}


@pytest.fixture
def models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    picky = Picky().eval().double()
    free = Free().eval().double()
    free.load_state_dict(picky.state_dict())
    return picky, free


@pytest.fixture
def x() -> ua.Gaussian:
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)
    return ua.Gaussian(mean, torch.rand(mean.shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("method", ["diagonal", "sketch", "adjoint", "hybrid", "full"])
def test_the_graph_gives_what_the_model_would(models, x: ua.Gaussian, method: str) -> None:
    picky, free = models
    found = ua.propagate(picky, {"x": x, "factor": 2.0}, method=method)
    wanted = ua.propagate(free, {"x": x, "factor": 2.0}, method=method)
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name].loc, wanted[name].loc, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[name].cov.var, wanted[name].cov.var, rtol=1e-8, atol=1e-12)
    assert "torch.export" in found["scores"].provenance.entrance
    assert "give me a tensor" in found["scores"].provenance.entrance
    assert "torch.export" in str(found["scores"].provenance)
    assert wanted["scores"].provenance.entrance == ""


def test_methods_on_tensors_need_no_graph(models, x: ua.Gaussian) -> None:
    y = ua.propagate(models[0], x, method="samples", samples=10)["scores"]
    assert y.provenance.entrance == ""


def test_one_graph_for_each_shape(models, x: ua.Gaussian) -> None:
    picky, _ = models
    captured = CapturedModel(picky)
    whole = captured(x)["scores"]
    parts = [captured(x[i : i + 1])["scores"].loc for i in range(2)]
    torch.testing.assert_close(torch.cat(parts), whole.loc)
    assert len(captured._captured) == 2
    assert isinstance(captured(x.loc)["scores"], Tensor)


def test_chunks_go_by_the_graph_too(models, x: ua.Gaussian) -> None:
    whole = ua.propagate(models[0], x, method="sketch")["scores"]
    parts = ua.propagate(models[0], x, method="sketch", chunk=1)["scores"]
    torch.testing.assert_close(whole.cov.var, parts.cov.var)


def test_a_program_can_be_propagated(models, x: ua.Gaussian, tmp_path: Path) -> None:
    picky, free = models
    program = torch.export.export(picky, (x.loc,))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    wanted = ua.propagate(free, x, method="adjoint")["scores"]
    for either in (program, loaded):
        y = ua.propagate(either, x, method="adjoint")["scores"]
        torch.testing.assert_close(y.cov.var, wanted.cov.var)
        assert y.provenance.entrance == "a program of torch.export"
    sampled = ua.propagate(loaded, x, method="samples", samples=4000)["scores"]
    torch.testing.assert_close(sampled.std, wanted.std, rtol=0.08, atol=0)


class Sized(nn.Module):
    """It asks for sizes, as TorchScript keeps them: as operators of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.size(0), 2)
        if x.dim() > 2:
            state = state + 1
        y = torch.tanh(self.layer(x)) + state
        return y.reshape(len(x), x.size()[1] - 1) / x.numel()


@pytest.mark.parametrize("method", ["hybrid", "adjoint", "diagonal"])
def test_a_script_may_ask_for_sizes(method: str) -> None:
    torch.manual_seed(0)
    model = Sized().eval()
    x = ua.Gaussian(torch.randn(4, 3), std=0.1)
    found, wanted = (ua.propagate(m, x, method) for m in (torch.jit.script(model), model))
    torch.testing.assert_close(found.mean, wanted.mean)
    torch.testing.assert_close(found.std + 0, wanted.std + 0, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrap", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, 3))])
def test_torchscript(wrap) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    part = nn.Sequential(plain[0], plain[1])
    x = ua.Gaussian(torch.randn(2, 3), 0.3)
    wanted = ua.propagate(plain, x, method="sketch")
    for model in (wrap(plain), nn.Sequential(wrap(part), plain[2])):
        y = ua.propagate(model, x, method="sketch")
        torch.testing.assert_close(y.cov.var, wanted.cov.var)
        assert "TorchScript" in y.provenance.entrance
    assert isinstance(model[0], torch.jit.ScriptModule)  # capturing put nothing else in its place


def test_a_scripted_function() -> None:
    x = ua.Gaussian(torch.randn(2, 3), 0.3)
    y = ua.propagate(scripted, x, method="diagonal")
    torch.testing.assert_close(y.cov.var, (torch.relu(x) + 1).cov.var)


def test_torchscript_called_directly_says_what_to_do() -> None:
    model = torch.jit.script(nn.Linear(3, 2))
    with pytest.raises(TypeError, match=r"ua\.propagate captures"):
        model(ua.Gaussian(torch.ones(1, 3), 1.0))


def test_the_models_own_error_stays_its_own() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        ua.propagate(nn.Linear(4, 2), ua.Gaussian(torch.ones(1, 3), 1.0), method="diagonal")


def test_an_unsupported_operation_is_named_with_its_place() -> None:
    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(x, Tensor)
            return torch.cumprod(x, 1)

    model = nn.Sequential(nn.ReLU(), Block())
    with pytest.raises(ua.UnsupportedOperation) as caught:
        ua.propagate(model, ua.Gaussian(torch.ones(2, 3), 1.0), method="diagonal")
    assert "cumprod" in caught.value.operation
    assert caught.value.module == "1 (Block)"


def test_neither_way_leads_in() -> None:
    class Data(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(x, Tensor)
            return x * 2 if float(x.sum()) > 0 else x

    model = Data()
    with pytest.raises(ua.UnsupportedOperation, match="does not work either") as caught:
        ua.propagate(model, ua.Gaussian(torch.ones(2, 3), 1.0), method="diagonal")
    assert 'method="samples"' in str(caught.value)


def test_running_statistics_survive_the_check_on_tensors() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if not isinstance(x, Tensor):
                raise TypeError("tensors only")
            return x * 2

    model = Counting()
    ua.propagate(model, ua.Gaussian(torch.ones(2, 3), 1.0), method="diagonal")
    assert model.calls == 0  # after the attempt with a Gaussian, the check and the run of the graph


def test_a_program_survives_saving_in_memory() -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(3, 2)), (torch.ones(1, 3),))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    x = ua.Gaussian(torch.ones(1, 3), 1.0)
    y = ua.propagate(torch.export.load(file), x, method="diagonal")
    assert y.shape == (1, 2)
