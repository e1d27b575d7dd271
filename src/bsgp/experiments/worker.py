"""`python -m bsgp.experiments.worker TASK OUT`: one run on one core, its record written to OUT."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

ABANDONED = 3  # exit code of a worker whose campaign is gone


def main(task: str, out: str) -> None:
    settings = json.loads(task)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {settings["core"]})  # before JAX counts cores: XLA's threads cost more than they give

    from bsgp import __version__
    from bsgp.experiments.experiment import load_kind
    from bsgp.startup import enable_compilation_cache

    enable_compilation_cache()
    kind = load_kind(settings["kind"])
    chosen = kind.Settings(**settings["run"])
    record = {"key": chosen.key, "kind": chosen.kind, **kind.run(chosen, settings["data_dir"])}
    record |= {"version": __version__, "commit": commit()}
    Path(out).write_text(json.dumps(record))


def _end_with_the_parent() -> None:
    """A worker whose campaign was killed would go on for minutes, for nobody."""
    while os.read(0, 1):  # not `sys.stdin`: its lock, held by a thread, would break the interpreter's exit
        pass
    os._exit(ABANDONED)


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
