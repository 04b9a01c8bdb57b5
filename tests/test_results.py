"""Results that survive being used: indexed, cut up, put together, moved, copied, written to files."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from safetensors.torch import save_file
from torch import Tensor, nn

import uaprop as ua

METHODS = {
    "hybrid": {"samples": 8},
    "hybrid-rank": {"samples": 8, "rank": 2},
    "adjoint": {"probes": 4},
    "linear": {},
    "samples": {"samples": 20},
    "full": {},
    "sketch": {"probes": 8},
    "diagonal": {},
}
WITH_ERRORS = ("hybrid", "hybrid-rank", "samples")
WITH_ATTRIBUTION = ("hybrid", "hybrid-rank", "adjoint", "linear")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).eval()


def noisy(batch: int = 5, seed: int = 1) -> ua.Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(batch, 6, generator=generator)
    return ua.Gaussian(mean, 0.1 + torch.rand(batch, 6, generator=generator))


def result(name: str, x: ua.Gaussian | None = None) -> ua.Gaussian:
    method = name.partition("-")[0]
    y: ua.Gaussian = ua.propagate(network(), noisy() if x is None else x, method, **METHODS[name])
    return y


@pytest.fixture(params=METHODS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, check_dtype=False)


def same(name: str, found: ua.Gaussian, y: ua.Gaussian, items: Any = slice(None)) -> None:
    """The found result is what y is for some of its batch elements."""
    close(found.loc, y.loc[items])
    close(found.cov.var, y.cov.var[items])
    close(found.covariance(), y.covariance()[items])
    assert found.provenance is not None
    assert y.provenance is not None
    assert found.provenance.method == y.provenance.method
    assert found.provenance.options == y.provenance.options
    if name in WITH_ERRORS:
        close(found.standard_error.mean, y.standard_error.mean[items])
        close(found.standard_error.std, y.standard_error.std[items])
    if name in WITH_ATTRIBUTION:
        close(found.attribution(2), y.attribution(2)[items])
    if name != "diagonal":
        close(found.nominal, y.nominal[items])
    if found.ndim:
        flips, wanted = ua.flip_probability(found), ua.flip_probability(y)
        torch.testing.assert_close(
            flips.flip, wanted.flip[items], rtol=1e-3, atol=1e-5, check_dtype=False
        )


@pytest.mark.parametrize(
    "items",
    [
        slice(0, 1),
        slice(1, 5, 2),
        2,
        -1,
        [3, 0, 3],
        torch.tensor([4, 1]),
        torch.tensor([True, False, True, True, False]),
        slice(3, 3),
    ],
    ids=str,
)
def test_some_batch_elements_of_a_result_are_what_they_were(name: str, items: Any) -> None:
    y = result(name)
    same(name, y[items], y, items)


def test_a_selection_of_a_selection_is_a_selection(name: str) -> None:
    y = result(name)
    same(name, y[1:][::2][[1, 0]], y, [3, 1])
    same(name, y.index_select(0, torch.tensor([2, 4])), y, [2, 4])


def test_iteration_over_a_batch_gives_its_elements(name: str) -> None:
    y = result(name)
    parts = list(y)
    assert len(parts) == 5
    for i, part in enumerate(parts):
        same(name, part, y, i)
    first, second = y.split([2, 3])
    same(name, first, y, slice(2))
    same(name, second, y, slice(2, 5))


def test_parts_of_a_batch_put_together_are_the_batch(name: str) -> None:
    y = result(name)
    same(name, torch.cat([y[:2], y[2:]]), y)
    same(name, torch.cat([y[3:], y[:1]]), y, [3, 4, 0])
    same(name, torch.stack(list(y)), y)
    same(name, torch.vstack([y[:1], y[1:]]), y)


def test_results_of_several_passes_can_be_put_together(name: str) -> None:
    first, second = result(name, noisy(2)), result(name, noisy(3, seed=7))
    y = torch.cat([first, second])
    same(name, y[:2], first)
    same(name, y[2:], second)
    same(name, y[[3, 0]][:1], second, slice(1, 2))


def test_some_outputs_keep_what_is_known_of_them(name: str) -> None:
    y = result(name)
    part = y[:, [3, 1]]
    close(part.covariance(), y.covariance()[:, [3, 1]][:, :, [3, 1]])
    close(y[..., :3].covariance(), y.covariance()[:, :3, :3])
    close(y[2, 1:].covariance(), y.covariance()[2, 1:, 1:])
    close(y.unflatten(1, (2, 2)).covariance(), y.covariance())
    close(
        torch.cat([y[:, :1], y[:, 2:]], 1).covariance(),
        y.covariance()[:, [0, 2, 3]][:, :, [0, 2, 3]],
    )
    if name != "diagonal":
        close(part.nominal, y.nominal[:, [3, 1]])
        close(y.unflatten(1, (2, 2)).nominal, y.nominal.view(5, 2, 2))
        close(y.T.nominal, y.nominal.T)
    if name in WITH_ERRORS:
        close(part.standard_error.std, y.standard_error.std[:, [3, 1]])
        close(y[:, 3].standard_error.mean, y.standard_error.mean[:, 3])
    if name in WITH_ATTRIBUTION:
        close(part.attribution(1), y.attribution(1))
        close(y[4].attribution(3), y.attribution(3)[4])
        close(y[:, 3].attribution(4), y.attribution(3)[4])
        close(y[4, 3].attribution(0), y.attribution(3)[4])


@pytest.mark.parametrize("method", ["hybrid", "adjoint", "linear", "samples"])
def test_what_batch_elements_have_in_common_is_not_made_up(method: str) -> None:
    y = result(method)
    for mixed in (y.flatten(), y.T, y[:, 0], torch.cat([y, y.flip(0)], 1)):
        assert mixed.cov.var.isfinite().all()
        with pytest.raises(ValueError, match="not kept: elements of several batch elements"):
            mixed.covariance()


def test_constants_in_a_concatenation_do_not_vary() -> None:
    y = result("hybrid")
    wide = torch.cat([y, torch.ones(5, 1)], 1)
    assert (wide.cov.var[:, 4] == 0).all()
    assert (wide.covariance()[:, 4] == 0).all()
    close(wide.covariance()[:, :4, :4], y.covariance())
    assert (wide.attribution(4) == 0).all()


@pytest.mark.parametrize(
    "convert",
    [
        lambda y: y.to("cpu"),
        lambda y: y.cpu(),
        lambda y: y.double(),
        lambda y: y.to(torch.float64),
        lambda y: y.detach(),
        lambda y: y.clone(),
        lambda y: y.double()[1:].float(),
        lambda y: y[1:].double(),
    ],
)
def test_a_converted_result_is_the_same(name: str, convert: Callable[[Any], Any]) -> None:
    y = result(name)
    found = convert(y)
    same(name, found, y, slice(5 - len(found), None))


def test_samples_of_a_part_have_its_covariance() -> None:
    y = result("linear")[[2, 0]]
    drawn = y.sample(20_000, generator=torch.Generator().manual_seed(0))
    deviations = drawn - drawn.mean(0)
    found = torch.einsum("nbi,nbj->bij", deviations, deviations) / len(drawn)
    torch.testing.assert_close(found, y.covariance(), rtol=0.1, atol=0.05)


def test_a_part_of_a_result_can_be_propagated_further() -> None:
    y = result("hybrid")
    head = nn.Linear(4, 2)
    found = ua.propagate(head, y[1:3], "linear")
    wanted = head.weight @ y.covariance()[1:3] @ head.weight.mT
    close(found.covariance(), wanted.detach())


def test_a_result_that_was_written_to_is_no_result_any_more() -> None:
    y = result("diagonal")
    part = y[:2]
    y += 1
    assert y.provenance is None
    close(part.loc, y.loc[:2])
    assert part.provenance is None


def test_operations_on_parts_are_refused() -> None:
    y = result("hybrid")[1:]
    for operation in (lambda: y + 1, lambda: torch.relu(y), lambda: y.sum(), lambda: y * y):
        with pytest.raises(ua.UnsupportedOperation, match="answer of a method"):
            operation()


def test_results_of_different_methods_say_which() -> None:
    y = torch.cat([result("hybrid"), result("linear")])
    assert y.provenance.method == "hybrid, linear"
    with pytest.raises(ValueError, match="without standard errors"):
        _ = y.standard_error
    close(y[5:].attribution(0), result("linear").attribution(0))
    close(y[:5].covariance(), result("hybrid").covariance())


def test_several_inputs_keep_their_attributions() -> None:
    model = nn.Bilinear(3, 2, 4)
    a, b = ua.Gaussian(torch.randn(4, 3), 0.1), ua.Gaussian(torch.randn(4, 2), 0.2)
    y = ua.propagate(model, (a, b), "linear")
    part = y[[2, 1]]
    for which in (0, 1):
        close(part.attribution(0, which), y.attribution(0, which)[[2, 1]])
    with pytest.raises(ValueError, match="no input 2: the model had 2"):
        part.attribution(0, 2)


def test_batch_elements_that_interact_keep_their_attribution() -> None:
    x = noisy()
    y = ua.propagate(lambda t: t - t.mean(0), x, "linear")
    part = y[[3, 1]]
    assert part.attribution(2).shape == (2, 5, 6)
    close(part.attribution(2), y.attribution(2)[[3, 1]])
    close(part.covariance(), y.covariance()[[3, 1]])


# ------------------------------------------------------------ copies and files


def pickled(y: Any) -> Any:
    return pickle.loads(pickle.dumps(y))


def saved_by_torch(y: Any) -> Any:
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def saved(y: ua.Gaussian, tmp_path: Path) -> ua.Gaussian:
    y.save(tmp_path / "y.safetensors")
    return ua.load(tmp_path / "y.safetensors")


@pytest.mark.parametrize("copied", [pickled, saved_by_torch, copy.copy, copy.deepcopy])
def test_a_copy_of_a_result_is_the_same(name: str, copied: Callable[[Any], Any]) -> None:
    y = result(name)
    same(name, copied(y), y)
    same(name, copied(y[[3, 1]]), y, [3, 1])
    same(name, copied({"y": [y]})["y"][0], y)


@pytest.mark.parametrize("nothing", [lambda y: y[3:3], lambda y: y[:, :0]])
def test_no_part_of_a_result_is_a_result_all_the_same(
    name: str, nothing: Callable[[Any], Any], tmp_path: Path
) -> None:
    y = nothing(result(name))
    for empty in (y, pickled(y), saved(y, tmp_path)):
        assert empty.sample(2).shape == (2, *y.shape)
        assert empty.covariance().shape == (len(y), y.shape[1], y.shape[1])
        if name in WITH_ATTRIBUTION and y.shape[1]:
            assert empty.attribution(0).shape == (0, 6)


def test_a_result_read_from_a_file_is_the_same(name: str, tmp_path: Path) -> None:
    y = result(name)
    same(name, saved(y, tmp_path), y)
    same(name, saved(y[1:4:2], tmp_path), y, slice(1, 4, 2))
    joined = torch.cat([y[:1], result(name, noisy(2, seed=3))])
    same(name, saved(joined, tmp_path)[:1], y, slice(1))
    assert str(saved(y, tmp_path).provenance) == str(y.provenance)


def test_part_of_a_result_takes_part_of_the_space() -> None:
    y = ua.propagate(nn.Linear(200, 3), ua.Gaussian(torch.randn(50, 200), 0.1), "linear")
    assert len(pickle.dumps(y[:1])) < len(pickle.dumps(y)) / 20


def test_a_file_without_attribution_is_smaller(tmp_path: Path) -> None:
    y = result("linear")
    y.save(tmp_path / "y", attribution=False)
    found = ua.load(tmp_path / "y")
    close(found.covariance(), y.covariance())
    with pytest.raises(ValueError, match="no attribution"):
        found.attribution(0)


@pytest.mark.parametrize("copied", [pickled, saved_by_torch, copy.copy, copy.deepcopy])
def test_a_copy_of_an_input_is_the_same(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    mean = torch.randn(2, 3)
    root = torch.randn(3, 3)
    for x in (
        ua.Gaussian(mean, 0.5),
        ua.Gaussian.from_factors(mean, torch.randn(4, 2, 3)),
        ua.Gaussian.from_dense(mean, root @ root.T),
        ua.Gaussian(mean, 0.5)[1:],
    ):
        for found in (copied(x), saved(x, tmp_path)):
            close(found.loc, x.loc)
            close(found.covariance(), x.covariance())
            assert type(found.cov) is type(x.cov)
            assert found.provenance is None


@pytest.mark.parametrize("copied", [pickled, saved_by_torch, copy.deepcopy])
def test_noise_that_is_shared_stays_so_in_one_copy(copied: Callable[[Any], Any]) -> None:
    x = ua.Gaussian.from_factors(torch.zeros(3), torch.randn(2, 3))
    a, b = copied([x, 2 * x])
    assert (b - a - a).cov.var.abs().max() < 1e-10


def test_a_copy_of_a_parameter_is_a_parameter() -> None:
    x = ua.Gaussian(torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True))
    found = copy.deepcopy(x)
    found.cov.var.sum().backward()
    assert found.cov.var.grad is not None
    assert x.cov.var.grad is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"uaprop gaussian", b"another gaussian"),
        lambda data: data.replace(b"finished", b"finishes"),
        lambda data: data.replace(b'"mean"', b'"meal"'),
        lambda data: b"",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # a number that is slightly another
        lambda data: data.replace(b'"dense.0"', b'"dense.1"'),
    ],
)
def test_a_damaged_file_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / "y"
    result("hybrid").save(file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match="holds no Gaussian that can be read"):
        ua.load(file)


def test_what_was_read_does_not_change_with_its_file(tmp_path: Path) -> None:
    y = result("hybrid")
    found = saved(y, tmp_path)
    file = tmp_path / "y.safetensors"
    with file.open("r+b") as opened:
        opened.seek(-1000, io.SEEK_END)
        opened.write(bytes(1000))
    same("hybrid", found, y)


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    save_file({"mean": torch.zeros(2)}, str(tmp_path / "other"))
    with pytest.raises(ValueError, match="its format is None"):
        ua.load(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="missing"):
        ua.load(tmp_path / "missing")


def test_a_value_inside_of_a_pass_is_not_stored() -> None:
    refused = []

    def model(x: Any) -> Any:
        try:
            pickle.dumps(x)
        except TypeError as error:
            refused.append(str(error))
        return x

    ua.propagate(model, noisy(), "hybrid")
    assert any("only while a model runs" in message for message in refused)


# ------------------------------------------------------------ collation


def test_items_of_a_data_set_are_collated() -> None:
    items = [
        {"x": ua.Gaussian(torch.full((3,), float(i)), 0.1 * (i + 1)), "y": i} for i in range(4)
    ]
    batch = next(iter(torch.utils.data.DataLoader(items, batch_size=4)))
    assert isinstance(batch["x"], ua.Gaussian)
    close(batch["x"].loc[:, 0], torch.arange(4.0))
    close(batch["x"].cov.var[:, 1], 0.1 * torch.arange(1.0, 5.0))
    assert torch.equal(batch["y"], torch.arange(4))


def test_tensors_among_the_items_are_collated_as_constants() -> None:
    """Of a batch that begins with one, torch's own function is called, with out=None."""
    x = ua.Gaussian(torch.ones(3), 0.1)
    for items in ([x, torch.zeros(3)], [torch.zeros(3), x]):
        batch = torch.utils.data.default_collate(items)
        assert isinstance(batch, ua.Gaussian)
        close(batch.cov.var.sum(1), batch.loc.sum(1) * 0.1)


def test_results_are_collated(name: str) -> None:
    y = result(name)
    same(name, torch.utils.data.default_collate(list(y)), y)
