"""One record per rule: the operation as a function of a random input, and how good its moments are.

Every test over rules runs over this table, and one test fails if a rule has no case here.
"""

from __future__ import annotations

from . import core, extremes, normalise, positive, sequence
from .table import Case, constant, like

__all__ = ["CASES", "ELSEWHERE", "Case", "constant", "like"]

CASES = [
    case for module in (core, positive, normalise, extremes, sequence) for case in module.T.cases
]

# Rules whose answer is not random, or that always refuse; each has a test of its own.
ELSEWHERE = {
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_tensor", "is_floating_point", "is_complex", "numel",
    "is_contiguous", "stride", "element_size", "get_device", "storage_offset",
    "max_pool_with_indices", "sigmoid_of_the_report", "cuda", "decision",
}  # fmt: skip
