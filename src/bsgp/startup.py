"""Compiled programs are kept on disk, so that the second start of the same fit does not compile again."""

import os
from pathlib import Path


def compilation_cache_folder() -> Path | None:
    """`$BSGP_CACHE`, else a folder of the user's cache; None if `$BSGP_CACHE` is empty or `off`."""
    chosen = os.environ.get("BSGP_CACHE")
    if chosen is not None:
        return None if chosen in ("", "off", "0") else Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bsgp" / "compiled"


def enable_compilation_cache() -> Path | None:
    """For programs, not for the library: it sets JAX's cache for the whole process, unless one is set already."""
    import jax

    folder = compilation_cache_folder()
    if folder is None or getattr(jax.config, "jax_compilation_cache_dir", None):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to: compile as ever
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # a fit has two programs that take seconds and a hundred that take milliseconds each; together they count too
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return folder
