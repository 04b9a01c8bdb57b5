"""``uaprop figures``."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..plot import FIGURES, draw

__all__ = ["run"]


def run(folder: Path) -> None:
    """Draw every figure into a folder and list the files."""
    console = Console()
    table = Table("figure", "files", "size", box=None, header_style="bold", pad_edge=False)
    table.columns[2].justify = "right"
    with console.status("drawing") as status:
        for name, files in draw(folder):
            status.update(f"drew {name}")
            kilobytes = sum(file.stat().st_size for file in files) / 1000
            names = "  ".join(file.name for file in files)
            table.add_row(FIGURES[name].shows, names, f"{kilobytes:,.0f} kB")
    console.print(table)
    console.print(f"Written to {folder}", soft_wrap=True, markup=False, highlight=False)
