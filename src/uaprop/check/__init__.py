"""How good an answer is: methods against Monte Carlo, the odds of a flip, and what a model is made of."""

from .compare import compare
from .comparison import Comparison
from .coverage import coverage
from .covered import Coverage
from .flip import Flip, flip_probability

__all__ = ["Comparison", "Coverage", "Flip", "compare", "coverage", "flip_probability"]
