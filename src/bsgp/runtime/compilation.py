"""Compiled programs: a cache on disk, shared by processes, and a limit to how many one process holds in memory.

XLA maps the code of every program into memory: about 900 memory maps for a fit with a new number of rows. Linux allows
a process 65,530 maps by default; one more compilation then ends the process with a segmentation fault.
"""

import gc
import logging
from pathlib import Path

import jax

from bsgp.runtime.files import cache_folder
from bsgp.runtime.memory import return_freed_memory

MAX_MEMORY_MAPS = 30_000

logger = logging.getLogger("bsgp")


def num_memory_maps() -> int:
    """Number of memory maps of this process; 0 if the system does not report it."""
    try:
        with Path("/proc/self/maps").open("rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


def release_compiled_programs(max_memory_maps: int = MAX_MEMORY_MAPS) -> bool:
    """Clears JAX's caches if this process has more than `max_memory_maps`. Returns whether it did.

    Programs that are needed again are compiled again.
    """
    if num_memory_maps() <= max_memory_maps:
        return False
    logger.info("More than %s memory maps: releasing JAX's compiled programs.", f"{max_memory_maps:,}")
    jax.clear_caches()
    gc.collect()
    return_freed_memory()
    return True


def enable_compilation_cache() -> Path | None:
    """Sets JAX's cache on disk for the whole process, unless one is set already. Returns the folder, if any.

    For command-line programs; the library itself does not change JAX's settings.
    """
    folder = cache_folder("compiled")
    if folder is None or getattr(jax.config, "jax_compilation_cache_dir", None):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # the home folder is not writable: do without the cache
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # a fit has two programs that take seconds to compile and a hundred that take milliseconds: cache those too
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return folder
