"""Many independent runs over local processes, one core each; a finished run is never lost and never run again.

Results are one JSON object per line in `RUNS/runs.jsonl`. Each run is a fresh interpreter: a crash takes one run with
it, and JAX is never forked. The child writes its record to a file of its own, which the parent appends.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from queue import Queue

from bsgp.experiments.experiment import Run

RESULTS = "runs.jsonl"
FAILURES = "failures.jsonl"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def read_records(folder: str | os.PathLike) -> list[dict]:
    """Every finished run of a folder; a line that a kill left half written is skipped."""
    path = Path(folder) / RESULTS
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def run_all(
    runs: Sequence[Run],
    folder: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    num_processes: int = 1,
    on_done: Callable[[Run, dict | None], None] = lambda run, record: None,
) -> list[Run]:
    """Run what is not in `folder` yet, in the order given; returns the runs that failed twice."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    finished = {record["key"] for record in read_records(folder)}
    waiting = [run for run in runs if run.key not in finished]
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[:num_processes] if hasattr(os, "sched_getaffinity") else range(1):
        cores.put(core)
    failed = []
    with ThreadPoolExecutor(cores.qsize()) as pool:  # the threads only wait for their processes
        futures = {pool.submit(_in_process, run, cores, data_dir): run for run in waiting}
        try:
            for future in as_completed(futures):
                run, (record, error) = futures[future], future.result()
                if record is None:
                    failed.append(run)
                    _append(folder / FAILURES, {"key": run.key, "error": error})
                else:
                    _append(folder / RESULTS, record)
                on_done(run, record)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def _append(path: Path, record: dict) -> None:
    """One line, on the disk before the next run is begun."""
    torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write(("\n" if torn else "") + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _in_process(run: Run, cores: Queue, data_dir) -> tuple[dict | None, str]:
    """The record of a run, or what its process said last; tried twice."""
    core, error = cores.get(), ""
    try:
        for _ in range(2):
            with tempfile.TemporaryDirectory() as scratch:
                out = Path(scratch) / "record.json"
                settings = asdict(run)  # pyright: ignore[reportArgumentType]: a protocol cannot say that it is a dataclass
                task = {
                    "kind": run.kind,
                    "run": settings,
                    "data_dir": None if data_dir is None else str(data_dir),
                    "core": core,
                }
                returncode, error = _run_worker(json.dumps(task), out)
                if returncode == 0 and out.exists():
                    return json.loads(out.read_text()), ""
    finally:
        cores.put(core)
    return None, error


def _run_worker(task: str, out: Path) -> tuple[int, str]:
    """The exit code of a worker, and the end of what it said."""
    with subprocess.Popen(
        [sys.executable, "-m", "bsgp.experiments.worker", task, str(out)],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.PIPE,  # held open, never written to: its end tells the worker that we are gone
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stderr is not None  # for the type checker
        said = worker.stderr.read()
        return worker.wait(), said[-2_000:]
