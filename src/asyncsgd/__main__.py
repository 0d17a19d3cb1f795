"""``python -m asyncsgd``."""

from asyncsgd.cli import main

main()
