"""Engines that do runs: processes of this machine, or the workers of a Dask scheduler.

Both are executors to which `run_in_fresh_process` is submitted, so that a run is the same everywhere: a separate
interpreter on one core. A crash affects only one run, and JAX is never forked.
"""

import ipaddress
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bsgp.experiments.engine.worker import ABANDONED

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
CONNECT_SECONDS = 10
WATCH_SECONDS = 10
"""Seconds between two checks whether any Dask worker has joined."""
RunOutcome = tuple[dict | None, str]
"""A record and no text, or None and the end of the process's error output."""

log = logging.getLogger(__name__)


# -- one run -----------------------------------------------------------------------------------------------------


def run_in_fresh_process(task: str, finished: str) -> RunOutcome:
    """Do a run, and repeat it once if it fails. Arguments are plain text, so that any executor can transfer them.

    The process also writes its record to the file `finished`, if its folder exists on this host. That copy survives if
    this worker or the campaign is killed before the record has arrived.
    """
    record, error = read_record(Path(finished)), ""
    if record is not None:
        return record, ""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "record.json"
            returncode, error = _run_worker(task, str(out), finished)
            if returncode == 0 and out.exists():
                return json.loads(out.read_text()), ""
            if returncode == ABANDONED:
                break
    return None, error


def read_record(path: Path) -> dict | None:
    """Read a record from its own file. Returns None if the file is missing or incomplete."""
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None


def _run_worker(*arguments: str) -> tuple[int, str]:
    """Start a worker and wait for it. Returns its exit code and the end of its error output."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "bsgp.experiments.engine.worker", *arguments],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.PIPE,  # never written to: when it closes, the worker knows that this process has ended
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker, _CHILDREN.get().holding(worker):
        assert worker.stderr is not None  # for the type checker
        errors = worker.stderr.read()
        returncode = worker.wait()
    return returncode, errors[-2_000:] or f"The process ended with exit code {returncode} and no error output."


# -- on this machine ---------------------------------------------------------------------------------------------


class _Children:
    """Processes that are ended together. Threads share the set, and rely on its operations being atomic."""

    def __init__(self):
        self._processes: set[subprocess.Popen] = set()
        self._ended = False

    @contextmanager
    def holding(self, process: subprocess.Popen) -> Iterator[None]:
        self._processes.add(process)
        if self._ended:  # checked after the addition, so that the process ends whether `end` comes before or after it
            _end_worker(process)
        try:
            yield
        finally:
            self._processes.discard(process)

    def end(self) -> None:
        self._ended = True
        for process in list(self._processes):
            _end_worker(process)


def _end_worker(process: subprocess.Popen) -> None:
    """Close the worker's standard input, at which it ends itself."""
    assert process.stdin is not None  # for the type checker
    process.stdin.close()


_OTHERS_CHILDREN = _Children()
"""Processes started by threads of other executors, such as Dask's. They are never ended from here."""
_CHILDREN: ContextVar[_Children] = ContextVar("children", default=_OTHERS_CHILDREN)
"""Processes of the executor whose thread this is."""


class LocalProcesses(ThreadPoolExecutor):
    """Executor whose threads each wait for one process, at most one per core. Ctrl-C ends the processes."""

    def __init__(self, num_processes: int):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._children = _Children()
        super().__init__(min(num_processes, cores), initializer=_CHILDREN.set, initargs=(self._children,))

    def __exit__(self, kind, error, trace):
        if error is not None:
            self.shutdown(wait=False, cancel_futures=True)
            self._children.end()
        return super().__exit__(kind, error, trace)


def as_executor(client: Any) -> Executor:
    """The standard executor of a `distributed.Client`, whose own futures differ. Other executors are returned as is."""
    if hasattr(client, "get_executor"):
        # `pure=False`: the same run of two campaigns is two tasks. `retries`: for failures outside of the run itself
        return client.get_executor(pure=False, retries=1)
    return client


# -- on a Dask scheduler -----------------------------------------------------------------------------------------


@contextmanager
def dask_client(address: str) -> Iterator[Any]:
    """Connection to a running scheduler, for `--scheduler`. It opens no port: results come through the scheduler."""
    exposure = exposure_warning(address)
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(
            f"`--scheduler` must find Dask Distributed installed, got: {error}. Run `pip install 'bsgp[dask]'`."
        ) from error
    if exposure is not None:
        log.warning(exposure)
    with _silent_dask():
        try:
            client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TypeError, ValueError) as error:  # TypeError: `tls://` without certificates
            raise ValueError(
                f"`--scheduler` must be the address of a running Dask scheduler, got {address!r}: {error}. "
                "Start one with `dask scheduler`; for `tls://` name the certificates in Dask's own configuration."
            ) from error
        with client, _warning_without_workers(client, address):
            _send_one_run_at_a_time(client)
            yield client


@contextmanager
def _silent_dask() -> Iterator[None]:
    """Silence Dask, which logs stack traces when it loses its scheduler. The campaign reports that itself."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def exposure_warning(address: str) -> str | None:
    """Warning about an address without encryption, or None. Raises a `ValueError` for what is not an address."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts = host = port = None
    if parts is None or parts.scheme not in ("tcp", "tls") or not host or not port:
        raise ValueError(
            f"`--scheduler` must be like tcp://HOST:PORT or tls://HOST:PORT, got {address!r}. "
            "`dask scheduler` prints its address when it starts."
        )
    if parts.scheme == "tls" or _is_loopback(host):
        return None
    return (
        f"The traffic with {address} is neither encrypted nor authenticated: anyone who reaches that port can run "
        "programs as you. Keep it in a network that you trust, or use tls:// and name certificates in Dask's "
        "configuration, `distributed.comm.tls` (docs: From a laptop to a cluster)."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _send_one_run_at_a_time(client: Any) -> None:
    """Make the scheduler send a worker its next run only when it has finished the last.

    If a worker dies, Dask loses all runs it was sent, and suspects each of them.
    """
    try:
        client.run_on_scheduler(_send_no_more_than_threads)
    except ImportError as error:  # the scheduler unpickles every task
        raise ValueError(
            f"`--scheduler` must have bsgp installed, got: {error}. Install the same version on scheduler and workers."
        ) from error
    except Exception as error:  # schedulers may forbid this
        log.warning(
            f"The scheduler refused to send one run at a time ({type(error).__name__}: {error}). "
            "Start it with DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION=1.0."
        )


def _send_no_more_than_threads(dask_scheduler: Any) -> None:  # Dask recognises the argument by its name
    dask_scheduler.WORKER_SATURATION = 1.0


@contextmanager
def _warning_without_workers(client: Any, address: str) -> Iterator[None]:
    """Log a warning whenever no worker is connected. The runs wait: on a cluster workers may join much later."""
    left = threading.Event()

    def watch() -> None:
        joined = alone = False
        while not left.wait(WATCH_SECONDS):
            try:
                present = bool(client.nthreads())
            except (OSError, TimeoutError):  # the scheduler is gone, which the futures report
                continue
            if not present and not alone:
                news = "All Dask workers have left" if joined else "No Dask worker has joined"
                log.warning(
                    f"{news} {address}: the runs wait for one. Start some with `dask worker {address} --nthreads 1`."
                )
            joined, alone = joined or present, not present

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join(1.0)
