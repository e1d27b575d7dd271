"""Compiled programs of this process: let go of them before they are too many.

XLA maps the code of every program into memory, some 900 maps for a fit with a new number of rows. Linux grants a
process 65,530, and beyond them the next compilation ends the process with a segmentation fault.
"""

import gc
import logging
from pathlib import Path

import jax

MOST_MAPS = 30_000

logger = logging.getLogger("bsgp")


def num_maps() -> int:
    """Memory maps of this process; 0 where the system does not tell."""
    try:
        with Path("/proc/self/maps").open("rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


def let_go_of_programs(most: int = MOST_MAPS) -> bool:
    """Clear JAX's caches if there are more than `most` maps; what is needed again is compiled again."""
    if num_maps() <= most:
        return False
    logger.info("More than %s memory maps: JAX's compiled programs are let go of.", f"{most:,}")
    jax.clear_caches()
    gc.collect()
    return True
