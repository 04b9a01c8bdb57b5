"""The report's layers: both forms of input, torch's options and state dicts, training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy.integrate import quad
from torch import Tensor, nn

import uaprop as ua
from uaprop.numerics import logistic
from uaprop.numerics.log_loss import expected_softplus

from .oracles import brute_force

LAYERS = [
    (ua.nn.UAConv2d, nn.Conv2d, (3, 4, 3), (2, 3, 6, 6)),
    (ua.nn.UALinear, nn.Linear, (5, 4), (2, 3, 5)),
    (ua.nn.UAAvgPool2d, nn.AvgPool2d, (2,), (2, 3, 6, 6)),
    (ua.nn.UAReLU, nn.ReLU, (), (2, 3)),
    (ua.nn.UASigmoid, nn.Sigmoid, (), (2, 3)),
    (ua.nn.UADropout, nn.Dropout, (0.3,), (2, 3)),
]
every_layer = pytest.mark.parametrize(
    ("layer", "plain", "args", "shape"), LAYERS, ids=lambda p: getattr(p, "__name__", None)
)


@every_layer
def test_answers_in_the_form_it_was_given(layer: Any, plain: Any, args: Any, shape: Any) -> None:
    module = layer(*args)
    mean, var = torch.randn(shape), torch.rand(shape)
    y = module(ua.Gaussian(mean, var))
    assert isinstance(y, ua.Gaussian)
    for form in (tuple, list):
        pair = module(form((mean, var)))
        assert type(pair) is form
        assert torch.equal(pair[0], y.mean)
        assert torch.equal(pair[1], y.var)
    assert type(module.eval()(mean)) is torch.Tensor  # a plain tensor is torch's own layer
    with pytest.raises(TypeError, match="pair"):
        module(3.0)
    with pytest.raises(TypeError, match="pair"):
        module((mean, var, var))
    with pytest.raises(ValueError, match="negative"):
        module((mean, -var))


@every_layer
def test_weights_load_both_ways(layer: Any, plain: Any, args: Any, shape: Any) -> None:
    ours, torchs = layer(*args), plain(*args)
    assert list(ours.state_dict()) == list(torchs.state_dict())
    torchs.load_state_dict(ours.state_dict())
    ours.load_state_dict(torchs.state_dict())
    assert isinstance(ours, plain)
    x = torch.randn(shape)
    torchs.eval(), ours.eval()
    y = ours((x, torch.zeros(shape)))
    assert torch.equal(y[0], torchs(x))
    assert torch.count_nonzero(y[1]) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1},
        {"padding": "same", "dilation": 2},
        {"padding": (2, 1), "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "replicate", "bias": False},
        {"padding": "same", "padding_mode": "circular"},
        {"groups": 2, "stride": (1, 2)},
    ],
    ids=str,
)
def test_every_option_of_conv2d_counts(options: dict[str, Any]) -> None:
    layer = ua.nn.UAConv2d(2, 4, (3, 2), dtype=torch.float64, **options)
    mean, var = torch.randn(1, 2, 5, 6).double(), torch.rand(1, 2, 5, 6).double()
    y = layer(ua.Gaussian(mean, var))
    plain = nn.Conv2d(2, 4, (3, 2), dtype=torch.float64, **options)
    plain.load_state_dict(layer.state_dict())
    expected = brute_force(lambda t: plain(t).detach(), ua.Gaussian(mean, var))
    torch.testing.assert_close(y.loc, expected[0])
    torch.testing.assert_close(y.cov.var, expected[1])


def test_repeated_elements_in_one_and_three_dimensions() -> None:
    for layer, shape in (
        (nn.Conv1d(2, 4, 5, padding=2, padding_mode="reflect", dilation=2, stride=2), (2, 2, 9)),
        (nn.Conv3d(1, 2, 3, padding=1, padding_mode="replicate"), (1, 1, 3, 4, 3)),
        (nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), (1, 3, 4)),
    ):
        module = layer.double().requires_grad_(False)
        x = ua.Gaussian(torch.randn(shape).double(), torch.rand(shape).double())
        y, expected = module(x), brute_force(module, x)
        torch.testing.assert_close(y.loc, expected[0])
        torch.testing.assert_close(y.cov.var, expected[1])


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True, "count_include_pad": False},
        {"kernel_size": 2, "divisor_override": 3},
    ],
    ids=str,
)
def test_every_option_of_avg_pool2d_counts(options: dict[str, Any]) -> None:
    layer, plain = ua.nn.UAAvgPool2d(**options), nn.AvgPool2d(**options)
    x = ua.Gaussian(torch.randn(2, 3, 6, 7).double(), torch.rand(2, 3, 6, 7).double())
    y, expected = layer(x), brute_force(plain, x)
    torch.testing.assert_close(y.loc, expected[0])
    torch.testing.assert_close(y.cov.var, expected[1])


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 3, 4)])
def test_linear_takes_any_leading_dimensions(leading: tuple[int, ...]) -> None:
    layer = ua.nn.UALinear(5, 2).double()
    x = ua.Gaussian(torch.randn(*leading, 5).double(), torch.rand(*leading, 5).double())
    y = layer(x)
    assert y.shape == (*leading, 2)
    torch.testing.assert_close(y.cov.var, x.cov.var @ layer.weight.square().T)


def test_dropout_has_the_moments_of_its_noise() -> None:
    layer = ua.nn.UADropout(0.3)
    x = ua.Gaussian(torch.tensor([1.0, -2.0, 0.0]).double(), torch.tensor([0.5, 0.0, 2.0]).double())
    y = layer(x)
    assert torch.equal(y.mean, x.mean)
    torch.testing.assert_close(y.var, (x.var + 0.3 * x.mean.square()) / 0.7)
    assert torch.equal(layer(x).var, y.var)  # no mask is drawn
    truth = ua.propagate(nn.Dropout(0.3), x, method="samples", samples=50_000)
    torch.testing.assert_close(y.var, truth.var, rtol=0.05, atol=0)
    assert layer.eval()(x) is x


def test_sigmoid_forms() -> None:
    mean = torch.linspace(-4, 4, 9).double()
    x = ua.Gaussian(mean, 2.0)
    exact = ua.nn.UASigmoid()(x)
    report = ua.nn.UASigmoid("report")(x)
    steep = ua.nn.UASigmoid("report", lam=3 / math.pi**2)(x)
    torch.testing.assert_close(report.mean, torch.sigmoid(mean / math.sqrt(1 + 0.368 * 2)))
    torch.testing.assert_close(steep.mean, torch.sigmoid(mean / math.sqrt(1 + 6 / math.pi**2)))
    root = math.sqrt(1 + 6 / math.pi**2)
    inner = torch.sigmoid(mean / root)
    torch.testing.assert_close(report.var, inner * (1 - inner) * (1 - 1 / root))
    assert 1e-4 < (report.mean - exact.mean).abs().max() < 0.02
    assert 1e-4 < (report.var - exact.var).abs().max() < 0.02
    assert "lam=0.368" in repr(ua.nn.UASigmoid("report"))
    assert torch.equal(ua.nn.UASigmoid("report")(ua.Gaussian(mean, 0.0)).mean, torch.sigmoid(mean))
    with pytest.raises(ValueError, match="exact"):
        ua.nn.UASigmoid("taylor")
    with pytest.raises(ValueError, match="negative"):
        ua.nn.UASigmoid(lam=-1.0)


def _expected_loss(m: float, v: float, y: float, weight: float = 1.0) -> float:
    def integrand(u: float) -> float:
        x = m + math.sqrt(v) * u
        softplus = max(-x, 0.0) + math.log1p(math.exp(-abs(x)))
        loss = (1 - y) * x + (1 + (weight - 1) * y) * softplus
        return loss * math.exp(-u * u / 2) / math.sqrt(2 * math.pi)

    value, _ = quad(integrand, -12, 12, epsabs=1e-13, epsrel=1e-12, limit=400, points=[-m / v**0.5])
    return value


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("weight", [None, 2.5])
def test_expected_cross_entropy_is_exact(target: float, weight: float | None) -> None:
    loss = ua.nn.UABCELoss(reduction="none", pos_weight=weight)
    for m, v in ((0.0, 1.0), (-3.0, 4.0), (2.0, 0.01), (1.0, 100.0), (6.0, 9.0)):
        score = ua.Gaussian(torch.tensor([m], dtype=torch.float64), v)
        value = loss(score, torch.tensor([target], dtype=torch.float64)).item()
        assert math.isclose(value, _expected_loss(m, v, target, weight or 1.0), rel_tol=1e-8)


def test_cross_entropy_at_zero_variance_is_torchs() -> None:
    mean, target = torch.randn(4, 3).double(), torch.rand(4, 3).double()
    weight = torch.tensor([1.0, 2.0, 3.0]).double()
    for approximation in ("exact", "report"):
        for reduction in ("mean", "sum", "none"):
            loss = ua.nn.UABCELoss(approximation, reduction, weight)
            expected = F.binary_cross_entropy_with_logits(
                mean, target, reduction=reduction, pos_weight=weight
            )
            torch.testing.assert_close(loss((mean, torch.zeros(4, 3).double()), target), expected)


@pytest.mark.parametrize("approximation", ["exact", "report"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_is_finite_for_huge_scores(approximation: str, dtype: torch.dtype) -> None:
    mean = torch.tensor([-1e4, 1e4, -1e4, 1e4], dtype=dtype, requires_grad=True)
    var = torch.tensor([0.0, 1.0, 1e4, 1e8], dtype=dtype, requires_grad=True)
    loss = ua.nn.UABCELoss(approximation)((mean, var), torch.tensor([1.0, 0.0, 0.0, 1.0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(var.grad).all()


def test_cross_entropy_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="does not match"):
        ua.nn.UABCELoss()(ua.Gaussian(torch.zeros(3), 1.0), torch.zeros(2))
    with pytest.raises(ValueError, match="reduction"):
        ua.nn.UABCELoss(reduction="median")
    with pytest.raises(ValueError, match="approximation"):
        ua.nn.UABCELoss("taylor")
    with pytest.raises(TypeError, match="pair"):
        ua.nn.UABCELoss()(torch.zeros(3), torch.zeros(3))


def test_the_reports_network_trains() -> None:
    """Gradients reach weights, input mean and input variance, and the expected loss falls."""
    torch.manual_seed(0)
    network = nn.Sequential(
        ua.nn.UAConv2d(1, 4, 3),
        ua.nn.UAReLU(),
        ua.nn.UADropout(0.2),
        ua.nn.UAAvgPool2d(2),
    )
    head = ua.nn.UALinear(4 * 9, 1)
    criterion = ua.nn.UABCELoss()
    images = torch.randn(32, 1, 8, 8)
    labels = (images.mean((1, 2, 3)) > 0).float().unsqueeze(1)
    mean = images.clone().requires_grad_()
    var = torch.full_like(images, 0.05).requires_grad_()
    optimiser = torch.optim.Adam([*network.parameters(), *head.parameters()], 1e-2)

    def loss() -> Tensor:
        m, v = network((mean, var))
        return criterion(head((m.flatten(1), v.flatten(1))), labels)

    before = loss()
    before.backward()
    for tensor in (mean, var, *network.parameters(), *head.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0
    for _ in range(60):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    assert loss() < 0.5 * before


def test_gradcheck_of_the_losses() -> None:
    mean = torch.randn(5, dtype=torch.float64, requires_grad=True)
    var = torch.rand(5, dtype=torch.float64, requires_grad=True)
    target = torch.rand(5, dtype=torch.float64)
    for approximation in ("exact", "report"):
        loss = ua.nn.UABCELoss(approximation)
        assert torch.autograd.gradcheck(lambda m, v, f=loss: f((m, v), target), (mean, var))
        sigmoid = ua.nn.UASigmoid(approximation)
        assert torch.autograd.gradcheck(lambda m, v, f=sigmoid: f((m, v)), (mean, var))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expected_softplus_has_all_digits_and_its_gradients(dtype: torch.dtype) -> None:
    """Against the moments of softplus and their derivatives, which are checked against mpmath."""
    mean = torch.cat([torch.linspace(-60, 60, 61), torch.tensor([-1e4, 1e4])]).to(dtype)
    var = torch.cat([torch.zeros(1), torch.logspace(-12, 6, 37)]).to(dtype)
    mean, var = (t.clone().requires_grad_() for t in torch.meshgrid(mean, var, indexing="ij"))
    rtol = {torch.float32: 3e-6, torch.float64: 2e-13}[dtype]
    value, gain, _ = logistic.softplus(mean, var)
    found = expected_softplus(mean, var)
    torch.testing.assert_close(found[:, 1:], value[:, 1:], rtol=rtol, atol=1e-37)
    # without variance the moments are torch's own values, which are x itself from 20 on
    torch.testing.assert_close(found[:, 0], value[:, 0], rtol=max(rtol, 1e-9), atol=1e-37)
    weight = torch.rand(mean.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    by_mean, by_var = torch.autograd.grad((weight * found).sum(), (mean, var), create_graph=True)
    torch.testing.assert_close(by_mean, weight * gain, rtol=rtol, atol=1e-37)
    bend = logistic.sigmoid(mean, var).gain
    torch.testing.assert_close(by_var, 0.5 * weight * bend, rtol=3 * rtol, atol=1e-37)


def test_expected_softplus_twice_differentiated() -> None:
    mean = torch.linspace(-3, 3, 7, dtype=torch.float64).requires_grad_()
    var = torch.linspace(0.1, 4, 7, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(expected_softplus, (mean, var))
    assert torch.autograd.gradgradcheck(expected_softplus, (mean, var))
