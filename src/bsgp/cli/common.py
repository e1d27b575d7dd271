"""Options and output that several commands share."""

import logging
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

DataDir = Annotated[
    Path | None, Parameter(help="Folder of the named data sets. Default: the environment variable BSGP_DATA.")
]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Print errors only.")]
Verbose = Annotated[bool, Parameter(name=["--verbose", "-v"], negative="", help="Print more detail.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print the result as JSON.")]


def numbers(text: str, name: str) -> list[int]:
    """Parse `0-3,7` as [0, 1, 2, 3, 7]."""
    result = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise ValueError(f"`--{name}` must be like 0-3 or 0,2,5, got {text!r}. Write numbers, commas and dashes.")
        result.extend(range(int(first), int(last or first) + 1))
    return result


def names(text: str | None) -> list[str]:
    """Parse `a, b` as ["a", "b"]."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def output(quiet: bool = False):
    """A console on standard output. It is 160 columns wide unless it is a terminal, so that cells do not fold."""
    from rich.console import Console

    console = Console(quiet=quiet, highlight=False)
    if not console.is_terminal:
        console.width = 160
    return console


class _OncePerMessage(logging.Filter):
    """Lets each message through once: scoring encodes the same rows, and logs the same notes, several times."""

    def __init__(self):
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self._seen
        self._seen.add(message)
        return is_new


def configure_logging(quiet: bool, verbose: bool) -> None:
    """Send bsgp's log to standard error, each message once, at the level that the user chose."""
    logging.basicConfig(format="bsgp: %(message)s")
    logger = logging.getLogger("bsgp")
    logger.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.WARNING)
    for one in list(logger.filters):
        if isinstance(one, _OncePerMessage):  # from an earlier command in this process
            logger.removeFilter(one)
    logger.addFilter(_OncePerMessage())
