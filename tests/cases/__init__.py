"""One record per rule: the operation as a function of a random input, and how good its moments are.

Every test over rules runs over this table, and one test fails if a rule has no case here.
"""

from __future__ import annotations

from . import algebra, aten, core, extremes, normalise, positive, scalars, sequence
from .table import Case, constant, like

__all__ = ["CASES", "ELSEWHERE", "FOREIGN", "Case", "constant", "like"]

CASES = [
    case
    for module in (core, aten, positive, normalise, extremes, sequence, algebra, scalars)
    for case in module.T.cases
]

# Rules whose answer is not random, or that always refuse; each has a test of its own.
ELSEWHERE = {
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_tensor", "is_floating_point", "is_complex", "numel",
    "is_contiguous", "stride", "element_size", "get_device", "storage_offset",
    "running_product", "affine_grid", "rrelu",
    "aten_size", "aten_metadata", "sigmoid_of_the_report", "marginals", "cuda", "decision",
    "left_aligned", "pack_padded_sequence",
    "size.int", "size.default", "dim.default", "len.Tensor",
}  # fmt: skip

# Rules for functions of other packages, registered when those are imported; tests/models has their tests.
FOREIGN = {"stochastic_depth", "drop_path", "_left_out"}
