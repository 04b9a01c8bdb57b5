"""Draw the pictures that the pages show into docs/images, small enough for a repository.

Run from the repository: .venv/bin/python docs/figures.py
They are those of ``uaprop figures`` and ``uaprop demo``, with fewer pixels and a palette.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image

from uaprop.demo import compare_digits
from uaprop.demo.picture import draw as draw_demo
from uaprop.plot import draw

IMAGES = Path(__file__).parent / "images"
WIDTH = 1000
COLOURS = 256
PHOTOGRAPHS = ("uaconv2d", "uaavgpool2d", "demo")


def shrink(source: Path, target: Path) -> None:
    """Write a picture at most ``WIDTH`` wide, with a palette.

    Lines need a palette that has every colour, photographs one that has every shade.
    """
    photograph = target.stem in PHOTOGRAPHS
    method = Image.Quantize.MEDIANCUT if photograph else Image.Quantize.MAXCOVERAGE
    with Image.open(source) as picture:
        picture = picture.convert("RGB")
        if picture.width > WIDTH:
            height = round(picture.height * WIDTH / picture.width)
            picture = picture.resize((WIDTH, height), Image.Resampling.LANCZOS)
        palette = picture.quantize(COLOURS, method, dither=Image.Dither.NONE)
        palette.save(target, optimize=True)


def main() -> None:
    """Draw all of them and print their sizes."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: paths[0] for name, paths in draw(Path(folder))}
        files["demo"] = Path(folder) / "demo.png"
        draw_demo(compare_digits(), files["demo"])
        for name, source in files.items():
            target = IMAGES / f"{name}.png"
            shrink(source, target)
            print(f"{target.name:16} {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
