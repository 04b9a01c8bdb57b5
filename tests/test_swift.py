"""Plain draws by the faster way: the same answers, and the model as it is where that cannot be had."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uaprop as ua
from uaprop.methods.swift import Swift

PICTURES = torch.randn(3, 3, 9, 9, generator=torch.Generator().manual_seed(1))


def normalised(channels: int) -> nn.BatchNorm2d:
    """A batch norm in eval mode that does something."""
    norm = nn.BatchNorm2d(channels)
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        nn.init.normal_(tensor)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return norm.eval()


class Net(nn.Module):
    """Two convolutions with norms, a residual, a head; ``after`` may use the first one's result again."""

    def __init__(self, after: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1, bias=False)
        self.norm, self.other = normalised(8), normalised(8)
        self.head = nn.Linear(8, 5)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        if self.after is None:
            y = F.relu(self.norm(y))
        else:
            y = self.after(y, self.norm(y))
        y = y + self.other(self.two(y))
        return self.head(F.relu(y).mean((2, 3)))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def agrees(model: Callable[[Tensor], Tensor], passes: int = 3) -> Swift:
    """Several passes, each against the model's own."""
    swift = Swift(model)
    with torch.no_grad():
        for k in range(passes):
            x = PICTURES + k
            expected = model(x.clone())
            given = x.clone()
            answer = swift(given)
            torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
            assert answer.is_contiguous() == expected.is_contiguous()
            assert torch.equal(given, x)
    return swift


def test_norms_go_into_the_weights() -> None:
    net = Net().eval()
    calls: list[object] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            calls.append(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    swift = agrees(net)
    with torch.no_grad(), Watch():
        swift(PICTURES)
    norms = (torch.ops.aten.native_batch_norm, torch.ops.aten._native_batch_norm_legit_no_training)
    assert calls
    assert not any(call in norms for call in calls)


def test_convolutions_have_channels_last() -> None:
    seen: list[bool] = []

    def model(x: Tensor) -> Tensor:
        y = F.conv2d(x, weight)
        seen.append(y.is_contiguous(memory_format=torch.channels_last))
        return y

    weight = torch.randn(4, 3, 3, 3)
    agrees(model)
    assert seen[1::2] == [True, True, True]  # the model's own pass comes before each
    assert not any(seen[::2])


@pytest.mark.parametrize(
    "after",
    [
        lambda y, z: z + y,
        lambda y, z: torch.cat([z[:, :4], y[:, 4:]], 1),
        lambda y, z: z * float(y.mean()),
        lambda y, z: torch.where(y > 0, z, y),
    ],
)
def test_a_result_that_is_used_again_keeps_its_norm_apart(
    after: Callable[[Tensor, Tensor], Tensor],
) -> None:
    agrees(Net(after).eval())


def test_a_result_that_is_returned_keeps_its_norm_apart() -> None:
    convolution, norm = nn.Conv2d(3, 4, 3), normalised(4)

    def model(x: Tensor) -> Tensor:
        y = convolution(x)
        return torch.cat([norm(y), y])

    agrees(model)
    swift = Swift(lambda x: (lambda y: (norm(y), y))(convolution(x)))
    with torch.no_grad():
        for _ in range(3):
            z, y = swift(PICTURES)
            torch.testing.assert_close(y, convolution(PICTURES), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(z, norm(y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("other", ["nothing", "relu", "keep", "another", "statistics", "return"])
def test_another_course_than_the_first_is_noticed(other: str) -> None:
    """From the third call on, the model does something else after its convolution."""
    convolution, norm, second = nn.Conv2d(3, 4, 3), normalised(4), normalised(4)
    calls = [0]

    def model(x: Tensor) -> Tensor:
        late = calls[0] >= 6  # each pass is made twice
        calls[0] += 1
        y = convolution(x)
        if not late:
            return norm(y).relu()
        if other == "relu":
            return y.relu()
        if other == "keep":
            z = norm(y)
            return z + y
        if other == "another":
            return second(y)
        if other == "statistics":
            return F.batch_norm(y, None, None, norm.weight, norm.bias, True)
        return convolution(x) if other == "nothing" else y

    swift = Swift(model)
    with torch.no_grad():
        for k in range(5):
            calls[0] = 2 * k if k < 3 else 6
            expected = model(PICTURES)
            calls[0] = 2 * k if k < 3 else 6
            torch.testing.assert_close(swift(PICTURES), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("which", ["weight", "running_mean", "replaced"])
def test_weights_that_change_between_passes(which: str) -> None:
    convolution, norm = nn.Conv2d(3, 4, 3), normalised(4)
    step = [0]

    def model(x: Tensor) -> Tensor:
        weight = convolution.weight
        if which == "replaced":  # as weight_norm does
            weight = weight * (1 + step[0])
        return norm(F.conv2d(x, weight, convolution.bias))

    swift = Swift(model)
    with torch.no_grad():
        for k in range(4):
            step[0] = k
            if which == "weight":
                convolution.weight.mul_(1.5)
            elif which == "running_mean":
                assert norm.running_mean is not None
                norm.running_mean.add_(1.0)
            torch.testing.assert_close(swift(PICTURES), model(PICTURES), rtol=1e-5, atol=1e-5)


def test_what_depends_on_the_layout_runs_as_it_is() -> None:
    convolution = nn.Conv2d(3, 4, 3)
    tried = [0]

    def viewed(x: Tensor) -> Tensor:
        x.add_(1.0)  # which must not happen twice
        tried[0] += 1
        return convolution(x).view(len(x), -1)

    swift = Swift(viewed)
    with torch.no_grad():
        for _ in range(2):
            x = PICTURES.clone()
            expected = convolution(PICTURES + 1.0).flatten(1)
            torch.testing.assert_close(swift(x), expected, rtol=1e-5, atol=1e-5)
    assert tried[0] == 3
    agrees(lambda x: convolution(x).as_strided((2, 3), (3, 1)))
    agrees(lambda x: convolution(x).resize_(5, 7))
    agrees(lambda x: x * convolution(x).stride()[1])


def test_an_error_of_the_model_is_the_model_s() -> None:
    with pytest.raises(RuntimeError, match="expected input"), torch.no_grad():
        Swift(nn.Conv2d(5, 4, 3))(PICTURES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_give_what_a_loop_gives(dtype: torch.dtype) -> None:
    net = Net().eval().to(dtype)
    x = ua.Gaussian(PICTURES.to(dtype), std=0.1)
    found = ua.propagate(net, x, method="samples", samples=64)
    kept: list[Tensor] = []

    def noted(z: Tensor) -> Tensor:
        float(z.sum())  # so it goes draw by draw
        kept.append(net(z.as_strided(z.shape, (243, 81, 9, 1))))  # and by the slow way
        return kept[-1]

    ua.propagate(noted, x, method="samples", samples=64)
    draws = torch.stack(kept)
    assert len(draws) == 64
    tight = 1e-4 if dtype is torch.float32 else 1e-9
    torch.testing.assert_close(found.loc, draws.mean(0), rtol=tight, atol=tight)
    torch.testing.assert_close(found.var, draws.var(0), rtol=10 * tight, atol=tight)


def test_a_compiled_model() -> None:
    net = Net().eval()
    compiled = torch.compile(net, backend="eager")
    agrees(compiled)
