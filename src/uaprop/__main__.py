"""``python -m uaprop``: the command line."""

from uaprop.cli import main

main()
