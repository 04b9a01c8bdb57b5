"""What kind of map each operation of torch is: one decorated function an operation.

Importing this package fills the registry.
"""

from . import (
    activation,
    affine,
    arithmetic,
    contract,
    extremes,
    join,
    noise,
    normalise,
    pool,
    positive,
    query,
    recurrent,
    reduce,
    report,
    resample,
    sequence,
    shape,
    softmax,
    window,
)

__all__ = [
    "activation",
    "affine",
    "arithmetic",
    "contract",
    "extremes",
    "join",
    "noise",
    "normalise",
    "pool",
    "positive",
    "query",
    "recurrent",
    "reduce",
    "report",
    "resample",
    "sequence",
    "shape",
    "softmax",
    "window",
]
