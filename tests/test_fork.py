"""A child process works, whatever the threads of its parent were at."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

import uaprop as ua

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


class Waiting(nn.Module):
    """Changes its state, and waits for a sign in the first process that runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("steps", torch.zeros(()))
        self.state = "before"
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.process = os.getpid()

    def forward(self, x: Any) -> Any:
        self.state = "changed"
        self.steps.add_(1)
        if os.getpid() == self.process:
            self.inside.set()
            assert self.go_on.wait(60)
        return self.linear(x)


def _status(child: Any) -> int:
    """The exit status of a child that runs the function; it is ended if it takes too long."""
    number = os.fork()
    if number == 0:
        status = 1
        try:
            status = 0 if child() else 2
        finally:
            os._exit(status)
    timer = threading.Timer(60, os.kill, (number, 9))
    timer.start()
    _, status = os.waitpid(number, 0)
    timer.cancel()
    return status


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # that a process with threads forks
@pytest.mark.parametrize("method", ["diagonal", "hybrid", "samples"])
def test_a_child_runs_while_another_thread_of_the_parent_is_inside(method: str) -> None:
    model, x = Waiting().eval(), ua.Gaussian(torch.ones(1, 3), var=0.1)
    thread = threading.Thread(target=ua.propagate, args=(model, x, method))
    thread.start()
    assert model.inside.wait(60)

    def child() -> bool:
        clean = model.state == "before" and float(model.steps) == 0
        y = ua.propagate(model, x, "hybrid")
        return clean and bool((y.std > 0).all()) and model.state == "before"

    try:
        assert _status(child) == 0
    finally:
        model.go_on.set()
        thread.join()
    assert model.state == "before"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_may_fork_while_it_is_run() -> None:
    found: list[int] = []
    x = ua.Gaussian(torch.ones(1, 3), var=0.1)

    def model(value: Any) -> Any:
        if not found:
            found.append(1)
            found.append(_status(lambda: ua.propagate(torch.tanh, x, "hybrid").shape == (1, 3)))
        return value * 2

    ua.propagate(model, x, "hybrid")
    assert found[1] == 0


FIRST = """
import faulthandler, os, sys, threading, time
import torch
import uaprop as ua

x = ua.Gaussian(torch.ones(2, 3), var=0.1)
model = torch.nn.Linear(3, 2)
first = threading.Thread(target=ua.propagate, args=(model, x, "hybrid"))
first.start()
time.sleep(float(sys.argv[1]))
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    ua.propagate(model, x, "hybrid")
    os._exit(0)
_, status = os.waitpid(child, 0)
first.join()
sys.exit(status != 0)
"""


@pytest.mark.parametrize("seconds", ["0", "0.1", "0.5"])
def test_a_child_runs_whose_parent_was_importing(seconds: str) -> None:
    """In the first propagation of a process, when uaprop and torch import what they need for it."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST, seconds], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
