"""Uncertainty-aware layers.

Each is the layer of torch that it is named after: same constructor, same ``state_dict``, so weights load both
ways. The mathematics is in the rules that any model uses; these exist for those who build networks as the
report does, layer by layer, on pairs ``(mean, var)``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..numerics.report import LAMBDA
from ..rules.report import report_sigmoid
from .pairs import Paired

__all__ = ["UAAvgPool2d", "UAConv2d", "UADropout", "UALinear", "UAReLU", "UASigmoid"]


class UAConv2d(Paired, nn.Conv2d):
    """2-D convolution: ``mean * w + b`` and ``var * w²``. Arguments as ``nn.Conv2d``."""


class UALinear(Paired, nn.Linear):
    """Fully connected layer: ``M Wᵀ + b`` and ``V (W²)ᵀ``. Arguments as ``nn.Linear``."""


class UAAvgPool2d(Paired, nn.AvgPool2d):
    """Average pooling: the variance is ``Σ v / n²`` for ``n`` elements. As ``nn.AvgPool2d``."""


class UAReLU(Paired, nn.ReLU):
    """ReLU with the exact moments of a rectified Gaussian. Arguments as ``nn.ReLU``."""


class UADropout(Paired, nn.Dropout):
    """Dropout: in training mode ``mean`` and ``(var + p mean²)/(1-p)``, the moments over all masks.

    No mask is sampled. In evaluation mode it is the identity. Arguments as ``nn.Dropout``.
    """


class _Sigmoid(nn.Sigmoid):
    approximation: str
    lam: float

    def forward(self, input: Any) -> Any:
        if self.approximation == "exact":
            return torch.sigmoid(input)
        return report_sigmoid(input, lam=self.lam)


class UASigmoid(Paired, _Sigmoid):
    """Sigmoid.

    Args:
        approximation: ``"exact"``, moments to all digits, or ``"report"``, the report's closed form.
        lam: the report's λ for the mean, which it leaves open; 0.368 by default (Daunizeau 2017).

    Raises:
        ValueError: for any other approximation, or a negative λ.
    """

    def __init__(self, approximation: str = "exact", lam: float = LAMBDA) -> None:
        super().__init__()
        if approximation not in ("exact", "report"):
            raise ValueError(f"approximation must be 'exact' or 'report', not {approximation!r}")
        if lam < 0:
            raise ValueError(f"lam must not be negative, not {lam}")
        self.approximation = approximation
        self.lam = lam

    def extra_repr(self) -> str:
        """Arguments for the printed form."""
        lam = f", lam={self.lam}" if self.approximation == "report" else ""
        return f"approximation={self.approximation!r}{lam}"
