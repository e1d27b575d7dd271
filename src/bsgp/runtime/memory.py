"""Available memory, and a check that a fit needs no more than that."""

import ctypes
import os
from pathlib import Path


def available_memory() -> int | None:
    """Bytes that this process can still allocate, limited by the machine and its control group; None if unknown."""
    found = [size for size in (_available_on_machine(), _available_in_cgroup()) if size is not None]
    return min(found, default=None)


def check_memory(needed: int, advice: str) -> None:
    """Raises a `ValueError` if `needed` bytes are not available. `advice` ends the message."""
    free = available_memory()
    if free is not None and needed > free:
        raise ValueError(
            f"The fit must have about {needed / 1e9:.1f} GB of memory, got {free / 1e9:.1f} GB available. {advice}"
        )


def return_freed_memory() -> None:
    """Gives freed memory back to the system. glibc keeps most of what compiled programs took: 0.7 of 1.2 GB."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return


def _available_on_machine() -> int | None:
    lines = _read("/proc/meminfo").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if found:
        return found[0]
    try:  # not Linux: only the installed memory is known
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _available_in_cgroup(folder: str = "/sys/fs/cgroup") -> int | None:
    """Memory limit of the container less its use, not counting cached files, which the system can evict."""
    limit, used = (_read(f"{folder}/memory.{name}").strip() for name in ("max", "current"))
    if not limit.isdigit() or not used.isdigit():
        return None
    lines = (line.split() for line in _read(f"{folder}/memory.stat").splitlines())
    files = sum(int(line[1]) for line in lines if line[0] in ("inactive_file", "active_file"))
    return max(0, int(limit) - int(used) + files)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
