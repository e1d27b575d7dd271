"""How much memory a fit will take, before it starts: what cannot fit is refused with the number."""

import os
from pathlib import Path

from bsgp.fisher import MAX_AXES

BASE_BYTES = 700_000_000
"""Python, JAX and a compiled program."""
WORK_ARRAYS = 12
"""Matrices of inducing points by rows that one gradient has in use at a time, for each layer; measured, with room."""
AXES_ARRAYS = 6
"""The covariance and the axes of a chain before a chunk of updates and after it, and what an eigensolver works on."""


def memory_of_chains(
    *,
    num_rows: int,
    num_inputs: int,
    num_targets: int,
    num_inducing: int,
    depth: int,
    num_chains: int,
    num_draws: int,
    batch_size: int,
    updates_per_chunk: int,
    itemsize: int,
    is_streamed: bool,
    learns_axes: bool = False,
) -> int:
    """Bytes of a fit of chains on minibatches: the rows, what an update works on, and all draws twice.

    Chains that learn axes of their gradients' noise have some matrices of all coordinates by all, if they are few.
    """
    width = num_inputs + num_targets
    if is_streamed:
        rows = 3 * 4 * num_chains * updates_per_chunk * batch_size * width  # read ahead, in use, and on the device
    else:
        rows = 3 * itemsize * num_rows * width  # the table, its copy on the device, and one on the way
    layer = num_inducing * (num_inputs + max(num_inputs, num_targets))
    work = WORK_ARRAYS * itemsize * depth * num_inducing * (num_inducing + batch_size)
    draws = 2 * itemsize * num_chains * num_draws * depth * layer
    coordinates = num_inducing * ((2 * depth - 1) * num_inputs + num_targets)
    axes = AXES_ARRAYS * itemsize * num_chains * coordinates**2 if learns_axes and coordinates <= MAX_AXES else 0
    return BASE_BYTES + rows + work + draws + axes


def memory_of_exact(num_rows: int, itemsize: int = 8) -> int:
    """Of a method with a matrix of all rows by all rows, in a few copies."""
    return BASE_BYTES + 4 * itemsize * num_rows**2


def available_memory() -> int | None:
    """Bytes that this process may still take, by the machine and by its control group; None where neither is known."""
    found = [size for size in (_free_of_machine(), _free_of_group()) if size is not None]
    return min(found, default=None)


def check_memory(needed: int, advice: str) -> None:
    """A `ValueError` where it cannot fit."""
    free = available_memory()
    if free is not None and needed > free:
        raise ValueError(
            f"The fit must have about {needed / 1e9:.1f} GB of memory, got {free / 1e9:.1f} GB that are free. {advice}"
        )


def _free_of_machine() -> int | None:
    lines = _read("/proc/meminfo").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if found:
        return found[0]
    try:  # not on Linux: all of it is the best that is known
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _free_of_group(folder: str = "/sys/fs/cgroup") -> int | None:
    """Of a container: its limit less what it uses, but for files in memory, which can be let go."""
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
