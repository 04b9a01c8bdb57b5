"""The networks that are timed, and the report's method written out by hand."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut: ResNet's basic block (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


def resnet18(pool: nn.Module) -> nn.Sequential:
    """ResNet-18's layers with random weights and statistics; ``pool`` follows the first one."""
    widths = (64, 64, 128, 256, 512)
    blocks: list[nn.Module] = []
    for stage, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        blocks += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        pool,
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval().requires_grad_(False)


def report_pass(module: nn.Module, mean: Tensor, var: Tensor) -> Pair:
    """The report's method as one would write it down: every formula in eager mode.

    Erratum 1 is corrected. Batch normalisation and the shortcut are not in the report; they are the
    obvious linear maps.
    """
    match module:
        case nn.Sequential():
            for child in module:
                mean, var = report_pass(child, mean, var)
            return mean, var
        case Block():
            body, side = (report_pass(m, mean, var) for m in (module.body, module.shortcut))
            return relu(body[0] + side[0], body[1] + side[1])
        case nn.Conv2d():
            options = (module.stride, module.padding, module.dilation, module.groups)
            squared = module.weight.square()
            return module(mean), F.conv2d(var, squared, None, *options)
        case nn.Linear():
            return module(mean), F.linear(var, module.weight.square())
        case nn.BatchNorm2d():
            scale = module.weight / torch.sqrt(module.running_var + module.eps)
            return module(mean), var * scale.square().view(-1, 1, 1)
        case nn.ReLU():
            return relu(mean, var)
        case nn.AvgPool2d():
            return module(mean), module(var) / module.kernel_size**2
        case nn.AdaptiveAvgPool2d():
            return module(mean), module(var) / (var.shape[-1] * var.shape[-2])
        case nn.Flatten():
            return module(mean), module(var)
    raise TypeError(f"the report has no {type(module).__name__}")


def relu(mean: Tensor, var: Tensor) -> Pair:
    """Equations (19) and (20), erratum 1 corrected."""
    std = var.sqrt()
    bell = torch.exp(-mean.square() / (2 * var)) / math.sqrt(2 * math.pi)
    cdf = 0.5 * (1 + torch.erf(mean / torch.sqrt(2 * var)))
    first = std * bell + mean * cdf
    return first, (var + mean.square()) * cdf + mean * std * bell - first.square()
