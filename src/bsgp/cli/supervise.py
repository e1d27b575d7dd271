"""Runs one of several processes under a parent that does not load JAX.

When a process of a run is lost, JAX's runtime aborts the others from C++ with a stack trace. The parent hides that
trace and prints one line that says what happened and what to do.
"""

import os
import re
import signal
import subprocess
import sys
import threading

from bsgp.runtime.processes import LOST_PEER

EXIT_LOST = 3
"""Exit code of a process, and of its parent, when another process of the run was lost."""
_SUPERVISED = "BSGP_SUPERVISED"
_CPP_LOG_ENTRY = re.compile(r"[EFIW]\d{4} \d\d:")
"""Start of an entry in the C++ log. An entry may span several lines."""
_GLOO_GREETING = "[Gloo] "
"""Start of the line that Gloo prints when a process joins."""


def is_supervised() -> bool:
    return os.environ.get(_SUPERVISED) == str(os.getppid())


def supervise(arguments: list[str]) -> int:
    """Run `bsgp` with these arguments in a child process and return its exit code."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bsgp", *arguments],
        env={**os.environ, _SUPERVISED: str(os.getpid())},
        stdin=subprocess.PIPE,  # never written to: the child exits when it closes, because the parent is gone
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: child.send_signal(number))
    threads = [
        threading.Thread(target=_forward, args=(child.stdout, sys.stdout)),
        threading.Thread(target=_forward, args=(child.stderr, sys.stderr)),
    ]
    for thread in threads:
        thread.start()
    code = child.wait()
    for thread in threads:
        thread.join()
    if code in (-signal.SIGABRT, EXIT_LOST):  # JAX's runtime and the command itself race to notice the loss
        print(f"bsgp: {LOST_PEER}", file=sys.stderr)
        return EXIT_LOST
    return code if code >= 0 else 128 - code


def _forward(source, sink) -> None:
    """Copy lines from the child to the parent, except the C++ log."""
    is_noise = False
    for line in source:
        is_noise = _CPP_LOG_ENTRY.match(line) is not None or (is_noise and not line.startswith(("bsgp: ", "Traceback")))
        if not is_noise and not line.startswith(_GLOO_GREETING):
            sink.write(line)
            sink.flush()
