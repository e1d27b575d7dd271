"""What the commands share: options that mean the same everywhere, and where output goes."""

import logging
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

DataDir = Annotated[
    Path | None, Parameter(help="Folder with the named data sets; else the variable BSGP_DATA, else ../shared/data.")
]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Say nothing but errors.")]
Verbose = Annotated[bool, Parameter(name=["--verbose", "-v"], negative="", help="Say more.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, for programs to read.")]


def numbers(text: str, name: str) -> list[int]:
    """`0-3,7` as [0, 1, 2, 3, 7]."""
    result = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise ValueError(f"`--{name}` must be like 0-3 or 0,2,5, got {text!r}. Write numbers, commas and dashes.")
        result.extend(range(int(first), int(last or first) + 1))
    return result


def names(text: str | None) -> list[str]:
    """`a, b` as ["a", "b"]."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def output(quiet: bool = False):
    """Standard output; wide where it is not a terminal, since folded cells serve nobody."""
    from rich.console import Console

    console = Console(quiet=quiet, highlight=False)
    if not console.is_terminal:
        console.width = 160
    return console


def say_as_told(quiet: bool, verbose: bool) -> None:
    """What was done to a table is said on standard error, one line each, once: a score encodes its rows repeatedly."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return message not in said and not said.add(message)

    logging.basicConfig(format="bsgp: %(message)s")
    logger = logging.getLogger("bsgp")
    logger.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.WARNING)
    logger.filters = [is_new]
