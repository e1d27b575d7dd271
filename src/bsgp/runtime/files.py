"""Files that are written completely or not at all and survive a power cut, and the cache folder."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces `path` when the block ends, or is deleted if the block raises."""
    temporary = path.with_name(f".{uuid.uuid4().hex}.part")  # not `tempfile`, whose files other users cannot read
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder(name: str) -> Path | None:
    """Folder of files that can be made again, or None if caching is switched off.

    `$BSGP_CACHE` (switched off by an empty value, `off` or `0`), else `bsgp` in the user's cache folder. `name` is
    `compiled` or `stores`.
    """
    chosen = os.environ.get("BSGP_CACHE")
    if chosen is None:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bsgp" / name
    if chosen in ("", "off", "0"):
        return None
    return Path(chosen) if name == "compiled" else Path(chosen) / name  # programs lie in `$BSGP_CACHE` itself
