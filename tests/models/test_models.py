"""Models that others wrote, unchanged: moments against Monte Carlo's. The table is in zoo.py."""

from __future__ import annotations

import pytest

from .bounds import BOUNDS
from .measure import measure
from .zoo import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_moments_agree_with_samples(name: str) -> None:
    bounds = BOUNDS[name]
    found = measure(MODELS[name], bounds.noise)  # the answers' form is asserted on the way
    assert found.liveliness > 0.1, "the output hardly depends on the input: this tests nothing"
    assert found.response > 0.01, "the noise is too small to be seen"
    for method, bound in (("diagonal", bounds.diagonal), ("sketch", bounds.sketch)):
        errors = found.errors[method]
        assert bound is not None
        assert errors.typical <= bound.typical, f"{method}: {errors}, bound {bound}"
        assert errors.pooled <= bound.pooled, f"{method}: {errors}, bound {bound}"
        assert errors.mean <= bound.mean, f"{method}: {errors}, bound {bound}"


def test_the_table_is_complete() -> None:
    assert set(BOUNDS) == set(MODELS)
    architectures = [name for name in MODELS if name.startswith(("torchvision/", "timm/"))]
    assert len(architectures) >= 40
    needed = {"bert", "gpt2", "vit", "whisper_encoder"}
    assert needed <= {name.partition("/")[2] for name in MODELS if name.startswith("transformers/")}


def test_the_bounds_mean_something() -> None:
    for name, bounds in BOUNDS.items():
        assert bounds.sketch is not None
        assert max(bounds.sketch.typical, bounds.sketch.pooled, bounds.sketch.mean) <= 0.3, name
