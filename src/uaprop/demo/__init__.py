"""The embedded demonstration: a small digits classifier and pictures to try it on."""

from uaprop.demo.camera import camera
from uaprop.demo.comparison import Comparison, compare_digits, forward_passes
from uaprop.demo.digits import digits_cnn, digits_images

__all__ = [
    "Comparison",
    "camera",
    "compare_digits",
    "digits_cnn",
    "digits_images",
    "forward_passes",
]
