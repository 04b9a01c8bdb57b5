"""Models that run their layers in threads of their own."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import uaprop as ua


@pytest.mark.parametrize("method", ["sketch", "adjoint", "hybrid", "full", "auto"])
def test_a_model_may_run_its_layers_in_threads(method: str) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def model(x: Any) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(net(x)), daemon=True)
        thread.start()
        thread.join(60)
        return found[0]

    x = ua.Gaussian(torch.randn(2, 3), 0.1)
    results: list[Any] = []
    run = threading.Thread(
        target=lambda: results.append(ua.propagate(model, x, method)), daemon=True
    )
    run.start()
    run.join(60)
    assert results, "it waits for itself"
    torch.testing.assert_close(results[0].std, ua.propagate(net, x, method).std)
