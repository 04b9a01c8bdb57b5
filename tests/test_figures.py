import math

import pytest
import torch
from PIL import Image

from uaprop.demo import camera, compare_digits
from uaprop.plot import FIGURES, draw, errata, style


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("figures") / "made" / "as needed"
    assert [name for name, _ in draw(out)] == list(FIGURES)
    return out


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_a_large_picture_with_content(folder, name):
    with Image.open(folder / f"{name}.png") as picture:
        assert picture.width >= 1500
        assert picture.height >= 600
        assert picture.info["dpi"][0] >= 150
        grey = torch.tensor(list(picture.convert("L").resize((300, 200)).tobytes()))
    assert len(grey.unique()) > 50
    assert 0.01 < (grey < 200).double().mean() < 0.8


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_also_a_drawing(folder, name):
    text = (folder / f"{name}.svg").read_text(encoding="utf-8")
    assert text.rstrip().endswith("</svg>")
    assert "<dc:date>" not in text


def test_a_drawing_is_the_same_every_time(folder, tmp_path):
    drawing = FIGURES["uabce"]
    style.save(drawing.fill, drawing.size, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (folder / "uabce.svg").read_bytes()


def test_drawing_leaves_the_users_style_alone(tmp_path):
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 31.0}):
        drawing = FIGURES["uarelu"]
        style.save(drawing.fill, drawing.size, tmp_path / "figure.png")
        assert mpl.rcParams["font.size"] == 31.0


def test_formulas_as_printed_are_wrong_as_the_errata_say():
    one = torch.ones((), dtype=torch.float64)
    assert float(errata._printed_relu_variance(one, 1.0)) == pytest.approx(0.267, abs=1e-3)
    # at μ = 3, y = 1 the loss is positive and grows with σ; as printed it falls, below zero
    assert float(errata._printed_cross_entropy(3 * one, 0.0, 1)) == pytest.approx(
        math.log1p(math.exp(-3))
    )
    assert float(errata._printed_cross_entropy(3 * one, 2.0, 1)) < 0
    assert errata._printed_pooling_variance(torch.ones(2, 2)) == (1.0, 0.25)


def test_camera_noise_is_read_noise_and_light():
    x = camera(torch.tensor([0.0, 0.5, 1.0]), read=0.1, gain=0.04)
    assert x.var.tolist() == pytest.approx([0.01, 0.03, 0.05])


def test_comparison_is_the_same_every_time():
    first, again = (compare_digits(samples=20) for _ in range(2))
    assert torch.equal(first.sampled.var, again.sampled.var)
    assert torch.equal(first.seen, again.seen)
    assert first.diagonal.shape == first.sampled.shape == (6, 10)


def test_comparison_needs_noise():
    with pytest.raises(ValueError, match="no noise"):
        compare_digits(read=0, gain=0)
