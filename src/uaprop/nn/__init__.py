"""The report's layers: torch's own, on a Gaussian or on the report's pair ``(mean, var)``."""

from .layers import UAAvgPool2d, UAConv2d, UADropout, UALinear, UAReLU, UASigmoid
from .loss import UABCELoss

__all__ = [
    "UAAvgPool2d",
    "UABCELoss",
    "UAConv2d",
    "UADropout",
    "UALinear",
    "UAReLU",
    "UASigmoid",
]
