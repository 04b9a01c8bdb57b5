"""What kind of map each operation of torch is: one decorated function an operation.

Importing this package fills the registry.
"""

from . import (
    activation,
    affine,
    arithmetic,
    contract,
    join,
    noise,
    pool,
    query,
    reduce,
    report,
    resample,
    shape,
    softmax,
)

__all__ = [
    "activation",
    "affine",
    "arithmetic",
    "contract",
    "join",
    "noise",
    "pool",
    "query",
    "reduce",
    "report",
    "resample",
    "shape",
    "softmax",
]
