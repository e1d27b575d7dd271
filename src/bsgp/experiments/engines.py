"""Where runs are done: in processes of this machine, or on the workers of a Dask scheduler.

Both are executors to which `run_in_fresh_process` is submitted, so that a run is the same anywhere: an interpreter of
its own on one core. A crash takes one run with it, and JAX is never forked.
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

from bsgp.experiments.worker import ABANDONED

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
CONNECT_SECONDS = 10
WATCH_SECONDS = 10
"""How often a campaign looks whether any Dask worker is there."""
Outcome = tuple[dict | None, str]
"""A record, or None and what the process said last."""

log = logging.getLogger(__name__)


# -- one run -----------------------------------------------------------------------------------------------------


def run_in_fresh_process(task: str, kept: str) -> Outcome:
    """Do a run, twice if it fails. What travels is text alone, so that any executor can carry it.

    The process leaves its record at `kept`, too, where that folder can be reached from here: there it survives if this
    worker, or the campaign, is killed before the result has arrived.
    """
    record, error = read_record(Path(kept)), ""
    if record is not None:
        return record, ""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "record.json"
            returncode, error = _run_worker(task, str(out), kept)
            if returncode == 0 and out.exists():
                return json.loads(out.read_text()), ""
            if returncode == ABANDONED:
                break
    return None, error


def read_record(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None


def _run_worker(*arguments: str) -> tuple[int, str]:
    """The exit code of a worker, and the end of what it said."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "bsgp.experiments.worker", *arguments],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.PIPE,  # held open, never written to: its end tells the worker that we are gone
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker, _CHILDREN.get().holding(worker):
        assert worker.stderr is not None  # for the type checker
        said = worker.stderr.read()
        returncode = worker.wait()
    return returncode, said[-2_000:] or f"It ended with exit code {returncode} and said nothing."


# -- on this machine ---------------------------------------------------------------------------------------------


class _Children:
    """Processes to be ended together. Threads share it: each step on the set is one that Python does not divide."""

    def __init__(self):
        self._processes: set[subprocess.Popen] = set()
        self._ended = False

    @contextmanager
    def holding(self, process: subprocess.Popen) -> Iterator[None]:
        self._processes.add(process)
        if self._ended:  # asked after it was added: whichever of this and `end` comes first, it is ended
            _let_go_of(process)
        try:
            yield
        finally:
            self._processes.discard(process)

    def end(self) -> None:
        self._ended = True
        for process in list(self._processes):
            _let_go_of(process)


def _let_go_of(process: subprocess.Popen) -> None:
    assert process.stdin is not None  # for the type checker
    process.stdin.close()


_NOBODYS = _Children()
"""Of threads of Dask and other executors: these are never ended from here."""
_CHILDREN: ContextVar[_Children] = ContextVar("children", default=_NOBODYS)
"""Of the executor whose thread this is."""


class LocalProcesses(ThreadPoolExecutor):
    """Threads that only wait for their processes, at most one for each core. Left by Ctrl-C, it ends them."""

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
    """A `distributed.Client` has futures of its own kind, and an executor with those of the standard library."""
    if hasattr(client, "get_executor"):
        # `pure=False`: the scheduler must not take two campaigns' runs for one; `retries`: of what fails around a run
        return client.get_executor(pure=False, retries=1)
    return client


# -- on a Dask scheduler -----------------------------------------------------------------------------------------


@contextmanager
def dask_client(address: str) -> Iterator[Any]:
    """A connection to a running scheduler, for `--scheduler`. It listens nowhere, and results come by the scheduler."""
    exposure = exposure_of(address)
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
        except (OSError, TypeError, ValueError) as error:  # TypeError: of `tls://` without certificates
            raise ValueError(
                f"`--scheduler` must be the address of a running Dask scheduler, got {address!r}: {error}. "
                "Start one with `dask scheduler`; for `tls://` name the certificates in Dask's own configuration."
            ) from error
        with client, _watching(client, address):
            _hold_back_tasks(client)
            yield client


@contextmanager
def _silent_dask() -> Iterator[None]:
    """Dask logs stack traces where it loses its scheduler. What follows from that for a campaign is said by us."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def exposure_of(address: str) -> str | None:
    """What to warn of, if anything; an address that is none is refused."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts = host = port = None
    if parts is None or parts.scheme not in ("tcp", "tls") or not host or not port:
        raise ValueError(
            f"`--scheduler` must be like tcp://HOST:PORT or tls://HOST:PORT, got {address!r}. "
            "`dask scheduler` prints its address as it starts."
        )
    if parts.scheme == "tls" or _is_loopback(host):
        return None
    return (
        f"The traffic with {address} is neither encrypted nor authenticated: who reaches that port runs programs "
        "as you. Keep it in a network that you trust, or use tls:// and name certificates in Dask's configuration, "
        "`distributed.comm.tls` (docs: From a laptop to a cluster)."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _hold_back_tasks(client: Any) -> None:
    """A worker is sent the next run when it is done with the last: more would be lost, and suspected, with it."""
    try:
        client.run_on_scheduler(_send_no_more_than_threads)
    except ImportError as error:  # it reads every task on its way
        raise ValueError(f"`--scheduler` must have bsgp installed, as its workers must, got: {error}.") from error
    except Exception as error:  # whatever else it answers: it may forbid this
        log.warning(
            f"The scheduler could not be told to hold back runs ({type(error).__name__}: {error}). "
            "Start it with DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION=1.0."
        )


def _send_no_more_than_threads(dask_scheduler: Any) -> None:  # Dask goes by the argument's name
    dask_scheduler.WORKER_SATURATION = 1.0


@contextmanager
def _watching(client: Any, address: str) -> Iterator[None]:
    """Say so while no worker is there. The runs wait: on a cluster, workers come when the queue lets them."""
    left = threading.Event()

    def watch() -> None:
        joined = alone = False
        while not left.wait(WATCH_SECONDS):
            try:
                present = bool(client.nthreads())
            except (OSError, TimeoutError):  # the scheduler is gone; the futures say so
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
