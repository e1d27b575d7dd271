"""What it takes for files to outlive a power cut."""

import os
from pathlib import Path


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are really there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
