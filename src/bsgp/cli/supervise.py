"""One process of several, watched by a parent that knows no JAX.

When a process of a run is lost, JAX's runtime ends the others from within C++, with a stack trace and no word of ours.
The parent keeps that to itself and says in one line what happened and what to do.
"""

import os
import re
import signal
import subprocess
import sys
import threading

from bsgp.processes import LOST_PEER

LOST = 3  # exit code, of the process itself and of its parent
_CHILD = "BSGP_SUPERVISED"
_LOGGED = re.compile(r"[EFIW]\d{4} \d\d:")
"""How an entry begins that C++ logs; it may go on for several lines."""
_GREETING = "[Gloo] "
"""One line, on joining."""


def is_supervised() -> bool:
    return os.environ.get(_CHILD) == str(os.getppid())


def supervise(arguments: list[str]) -> int:
    """Run `bsgp` with these arguments in a process of its own, and return its exit code."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bsgp", *arguments],
        env={**os.environ, _CHILD: str(os.getpid())},
        stdin=subprocess.PIPE,  # never written to: its end tells the child that its parent is gone
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: child.send_signal(number))
    passers = [
        threading.Thread(target=_pass_on, args=(child.stdout, sys.stdout)),
        threading.Thread(target=_pass_on, args=(child.stderr, sys.stderr)),
    ]
    for passer in passers:
        passer.start()
    code = child.wait()
    for passer in passers:
        passer.join()
    if code in (-signal.SIGABRT, LOST):  # by JAX's runtime, or by the command itself: whichever was first
        print(f"bsgp: {LOST_PEER}", file=sys.stderr)
        return LOST
    return code if code >= 0 else 128 - code


def _pass_on(source, sink) -> None:
    """Line by line, but for what C++ logs, which may go on for several, and for the line that the parent says."""
    is_noise = False
    for line in source:
        is_noise = _LOGGED.match(line) is not None or (is_noise and not line.startswith(("bsgp: ", "Traceback")))
        if not is_noise and not line.startswith(_GREETING) and LOST_PEER not in line:
            sink.write(line)
            sink.flush()
