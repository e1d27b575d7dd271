"""`python -m bsgp` is the command `bsgp`."""

from bsgp.cli import main

main()
