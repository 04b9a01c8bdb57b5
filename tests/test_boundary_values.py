"""Derivatives that are not finite, tensors without elements, outputs that are infinite or integers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import uaprop as ua

DOUBLE = torch.float64


def length(x: Tensor) -> Tensor:
    """Its derivative at zero is NaN by autograd."""
    return torch.sqrt((x * x).sum(1))


def zeros(var: float) -> ua.Gaussian:
    return ua.Gaussian(torch.zeros(2, 5, dtype=DOUBLE), var)


def test_linear_refuses_a_derivative_that_is_not_finite() -> None:
    with pytest.raises(ua.UnsupportedOperation, match="infinite or NaN at the mean"):
        ua.propagate(length, zeros(1e-6), "linear")


@pytest.mark.parametrize("rank", [None, 1])
def test_hybrid_leaves_what_has_no_finite_derivative_to_its_samples(rank: int | None) -> None:
    def model(x: Tensor) -> Tensor:
        return torch.stack([length(x), x.sum(1), length(x) + x[:, 0]], 1)

    truth = ua.propagate(model, zeros(1e-6), "samples", samples=20_000)
    y = ua.propagate(model, zeros(1e-6), "hybrid", samples=400, rank=rank)
    torch.testing.assert_close(y.std, truth.std, rtol=0.15, atol=0)
    torch.testing.assert_close(y.loc, truth.loc, rtol=0, atol=2e-4)


def test_hybrid_without_noise_is_the_model_where_its_derivative_is_not_finite() -> None:
    y = ua.propagate(length, zeros(0.0), "hybrid")
    assert y.mean.tolist() == y.std.tolist() == [0.0, 0.0]


def test_a_variance_that_is_nan_is_not_a_standard_deviation_of_zero() -> None:
    y = ua.Gaussian(torch.zeros(2), 1.0) * torch.tensor([torch.nan, 2.0])
    assert y.std[0].isnan()
    assert y.std[1] == 2


def test_infinite_outputs_stay_infinite_in_samples() -> None:
    x = ua.Gaussian(torch.tensor([-1.0, 0.5]), 1e-4)
    y = ua.propagate(torch.special.entr, x, "samples", samples=50)
    assert y.mean[0] == -torch.inf
    assert y.std[0] == 0
    assert y.std[1] > 0


EMPTY = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "norm": lambda x: torch.linalg.norm(x),
    "local_response_norm": lambda x: F.local_response_norm(x, 1),
    "sum of a softmax": lambda x: torch.softmax(x, -1).sum(-1),
}


@pytest.mark.parametrize("method", ["diagonal", "full", "sketch", "adjoint", "hybrid", "samples"])
@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements_give_what_torch_gives(name: str, method: str) -> None:
    point = torch.zeros(2, 3, 0, dtype=DOUBLE)
    y = ua.propagate(EMPTY[name], ua.Gaussian(point, 1.0), method)
    expected = EMPTY[name](point)
    if isinstance(y, ua.Gaussian):
        assert not y.var.any()
        y = y.loc
    torch.testing.assert_close(y.detach(), expected)


def test_scalars_have_a_cosine() -> None:
    x = ua.Gaussian(torch.tensor(2.0), 1e-4)
    expected = F.cosine_similarity(torch.tensor(2.0), torch.tensor(-3.0), dim=0)
    y = ua.propagate(lambda t: F.cosine_similarity(t, torch.tensor(-3.0), dim=0), x, "samples")
    torch.testing.assert_close(y.loc, expected)


@pytest.mark.parametrize("norm", [F.batch_norm, F.instance_norm])
def test_random_running_statistics_are_refused(norm: object) -> None:
    x, mean = torch.randn(4, 3, 5), ua.Gaussian(torch.zeros(3), 0.1)
    with pytest.raises(ua.UnsupportedOperation, match="running statistics are random"):
        norm(x, mean, torch.ones(3))  # type: ignore[operator]


def test_a_negative_epsilon_is_refused() -> None:
    x = ua.Gaussian(torch.randn(2, 6), 0.1)
    with pytest.raises(ua.UnsupportedOperation, match=r"eps=-0\.5 is negative"):
        F.layer_norm(x, (6,), eps=-0.5)


@pytest.mark.parametrize("method", ["linear", "adjoint", "hybrid", "auto", "samples"])
def test_a_result_has_the_dtype_of_the_models_output(method: str) -> None:
    x = ua.Gaussian(torch.rand(2, 5, dtype=DOUBLE), 1e-4)
    y = ua.propagate(lambda t: torch.sin(t).float(), x, method)
    assert y.dtype == y.var.dtype == y.covariance().dtype == torch.float32
