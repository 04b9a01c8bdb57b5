"""Weights of the networks that are trained when they are first needed, and then cached.

The files in benchmarks/.cache/ can be deleted at any time; figures change a little with other weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CACHE = Path(__file__).parent / ".cache"

Loss = Callable[[nn.Module, torch.Generator], Tensor]


def trained(name: str, build: Callable[[], nn.Module], loss: Loss, steps: int) -> nn.Module:
    """A network in eval mode, with weights from the cache or from a training of so many steps.

    Adam with the learning rate 0.003, annealed to zero. Training is seeded; the generator that
    ``loss`` chooses its batch with is, too.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build()
        path = CACHE / f"{name}-{steps}.weights.safetensors"
        if path.exists():
            model.load_state_dict(load_file(path))
            return model.eval()
        generator = torch.Generator().manual_seed(1)
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        with torch.enable_grad():
            for _ in range(steps):
                optimiser.zero_grad()
                loss(model.train(), generator).backward()
                optimiser.step()
                schedule.step()
    CACHE.mkdir(exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    save_file(model.state_dict(), unfinished)
    unfinished.replace(path)
    return model.eval()
