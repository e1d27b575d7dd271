"""`python -m bsgp.experiments.worker TASK OUT KEPT`: one run on one core, its record written to OUT, and to KEPT."""

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
except ImportError:  # no cores are claimed there
    fcntl = None

from bsgp.disk import replacing
from bsgp.processes import end_with_the_parent

ABANDONED = 3  # exit code of a worker whose campaign is gone


def main(task: str, out: str, kept: str) -> None:
    settings = json.loads(task)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to us, too: a run cut short is no result
    end_with_the_parent(ABANDONED)
    claim_core()  # before JAX counts cores: XLA's threads cost more than they give

    from bsgp import __version__
    from bsgp.experiments.experiment import load_kind
    from bsgp.startup import compilation_cache_folder, enable_compilation_cache

    if compilation_cache_folder() is not None:
        enable_compilation_cache()
    kind = load_kind(settings["kind"])
    chosen = kind.Settings(**settings["run"])
    record = {"key": chosen.key, "kind": chosen.kind, **kind.run(chosen, data_folder_here(settings["data_dir"]))}
    record |= {"version": __version__, "commit": commit()}
    text = json.dumps(record)
    with contextlib.suppress(OSError), replacing(Path(kept)) as file:  # no such folder on this host: OUT is enough
        file.write(text.encode())
    Path(out).write_text(text)


def claim_core() -> int | None:
    """Keep to one core, if there is one that no other worker of this user keeps to; None where cores cannot be chosen.

    Nobody hands out cores: workers of several campaigns, and of Dask, share a machine. A lock says that a core is
    taken, and goes with the process that holds it, however that ends. `taskset` and queues choose among which cores.
    """
    if fcntl is None or not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    core = next((one for one in cores if _lock(one)), cores[os.getpid() % len(cores)])
    os.sched_setaffinity(0, {core})
    return core


def _lock(core: int) -> bool:
    """Take the lock of a core until this process ends: its file is never closed."""
    assert fcntl is not None  # for the type checker
    path = Path(tempfile.gettempdir()) / f"bsgp-{os.getuid()}-core{core}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # a folder that cannot be written to, or a name that somebody else has taken
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    return True


def data_folder_here(data_dir: str | None) -> str | None:
    """The campaign's folder; on a host that has none at that place, the host's own, which `$BSGP_DATA` names."""
    if data_dir is not None and os.environ.get("BSGP_DATA") and not Path(data_dir).is_dir():
        return None
    return data_dir


def commit() -> str | None:
    """Of the source that ran, with a mark if it was changed since; None outside a repository."""
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
