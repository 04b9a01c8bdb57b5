"""How good an answer is: methods against Monte Carlo, and how likely a prediction is to flip."""

from .compare import compare
from .comparison import Comparison
from .flip import Flip, flip_probability

__all__ = ["Comparison", "Flip", "compare", "flip_probability"]
