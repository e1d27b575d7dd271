"""`python -m bsgp.experiments.engine.worker TASK OUT FINISHED`: does one run on one core.

The record is written to OUT, and to FINISHED if that folder exists on this host.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where no cores are claimed
    fcntl = None

from bsgp.runtime.files import cache_folder, replacing
from bsgp.runtime.processes import exit_with_parent

ABANDONED = 3
"""Exit code of a worker whose campaign has ended."""


def main(task: str, out: str, finished: str) -> None:
    """Do the run that the JSON text `task` describes."""
    settings = json.loads(task)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C here, too: a run cut short is no result
    exit_with_parent(ABANDONED)
    claim_core()  # before JAX counts cores: more threads of XLA cost more than they gain

    from bsgp.experiments.engine.provenance import provenance
    from bsgp.experiments.engine.records import to_line
    from bsgp.experiments.experiment import load_kind

    if cache_folder("compiled") is not None:
        from bsgp.runtime.compilation import enable_compilation_cache

        enable_compilation_cache()
    kind = load_kind(settings["kind"])
    chosen = kind.Settings(**settings["run"])
    record = {"key": chosen.key, "kind": chosen.kind, **kind.run(chosen, local_data_folder(settings["data_dir"]))}
    text = to_line(record | provenance(record) | {"commit": source_commit()})
    # this host may not have the folder: OUT is enough
    with contextlib.suppress(OSError), replacing(Path(finished)) as file:
        file.write(text.encode())
    Path(out).write_text(text)


def claim_core() -> int | None:
    """Restrict this process to one core, if possible one that no other worker of this user has claimed.

    Workers of several campaigns and of Dask share a machine without a common scheduler. A claim is a file lock, which
    ends with the process that holds it. Only cores that this process may use (`taskset`, queues) are considered.
    Returns None where the system cannot choose cores.
    """
    if fcntl is None or not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    core = next((one for one in cores if _lock(one)), cores[os.getpid() % len(cores)])
    os.sched_setaffinity(0, {core})
    return core


def _lock(core: int) -> bool:
    """Take the lock of a core until this process ends. Its file is deliberately never closed."""
    assert fcntl is not None  # for the type checker
    path = Path(tempfile.gettempdir()) / f"bsgp-{os.getuid()}-core{core}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # the folder is not writable, or someone else owns the name
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    return True


def local_data_folder(data_dir: str | None) -> str | None:
    """The campaign's data folder. None, for the host's own BSGP_DATA, if this host does not have that folder."""
    if data_dir is not None and os.environ.get("BSGP_DATA") and not Path(data_dir).is_dir():
        return None
    return data_dir


def source_commit() -> str | None:
    """Commit of the source that runs, followed by `+` if files have changed since. None outside a repository."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--", "."], cwd=here.parent, capture_output=True, text=True
        )
    except OSError:
        return None
    if head.returncode != 0:
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
