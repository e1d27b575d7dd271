"""Campaigns of many independent runs. A finished run is never lost and never repeated.

Results are one JSON object per line in `RUNS/runs.jsonl`, which only the campaign writes. The process of a run first
leaves its record in `RUNS/finished`. If the record does not reach the campaign, the next campaign collects it there.
`engines` decides where the runs are done.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bsgp.experiments.engine.engines import LocalProcesses, RunOutcome, as_executor, read_record, run_in_fresh_process
from bsgp.experiments.engine.records import from_line, to_line
from bsgp.experiments.experiment import RunSettings

RESULTS = "runs.jsonl"
FAILURES = "failures.jsonl"
FINISHED = "finished"


def read_records(folder: str | os.PathLike) -> list[dict]:
    """Read the records of all finished runs in a folder. Skips a line that a killed campaign left incomplete."""
    path = Path(folder) / RESULTS
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(from_line(line))
        except json.JSONDecodeError:
            continue
    return records


def collect_finished(folder: str | os.PathLike) -> set[str]:
    """Append records that finished after their campaign had ended. Returns the keys of all finished runs."""
    folder = Path(folder)
    keys = {record["key"] for record in read_records(folder)}
    for path in sorted((folder / FINISHED).glob("*.json")):
        record = read_record(path)
        if record is None:
            continue
        if record["key"] not in keys:
            _append(folder / RESULTS, record)
            keys.add(record["key"])
        path.unlink(missing_ok=True)
    return keys


def run_all(
    runs: Sequence[RunSettings],
    folder: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    n_jobs: int = 1,
    client: Any = None,
    on_done: Callable[[RunSettings, dict | None], None] = lambda run, record: None,
) -> list[RunSettings]:
    """Do the runs that `folder` does not have yet, in the order given. Returns the runs that failed twice.

    `client` is any `concurrent.futures.Executor` or a `distributed.Client`. Without a client the runs are processes of
    this machine, `n_jobs` at a time.
    """
    folder = Path(folder).absolute()  # workers have another working directory
    (folder / FINISHED).mkdir(parents=True, exist_ok=True)
    finished = collect_finished(folder)
    waiting = {run.key: run for run in runs if run.key not in finished}
    failed = []
    with LocalProcesses(n_jobs) if client is None else nullcontext(as_executor(client)) as executor:
        futures: dict[Future, RunSettings] = {}
        try:
            for run in waiting.values():
                task, path = _task(run, data_dir), str(_finished_file(folder, run))
                futures[executor.submit(run_in_fresh_process, task, path)] = run
            for future in as_completed(futures):
                run, (record, error) = futures.pop(future), _outcome(future)
                del future  # Dask repeats a run if its worker dies while anyone holds its future
                if record is None:
                    failed.append(run)
                    _append(folder / FAILURES, {"key": run.key, "error": error})
                else:
                    _append(folder / RESULTS, record)
                    _finished_file(folder, run).unlink(missing_ok=True)
                on_done(run, record)
        except BaseException:  # also Ctrl-C. Runs on other machines continue, and the next campaign collects them
            for future in futures:
                future.cancel()
            raise
    return failed


def _task(run: RunSettings, data_dir: str | os.PathLike | None) -> str:
    """JSON text that `worker` reads."""
    settings = asdict(run)  # pyright: ignore[reportArgumentType]: a protocol cannot require a dataclass
    place = None if data_dir is None else str(Path(data_dir).absolute())
    return json.dumps({"kind": run.kind, "run": settings, "data_dir": place})


def _finished_file(folder: Path, run: RunSettings) -> Path:
    """File in which the process of a run leaves its record. Its name is a hash: keys have slashes and may be long."""
    return folder / FINISHED / f"{hashlib.sha256(run.key.encode()).hexdigest()[:32]}.json"


def _outcome(future: Future) -> RunOutcome:
    """Result of a future. An exception of the engine, such as Dask's `KilledWorker`, counts as a failed run."""
    try:
        return future.result()
    except CancelledError as error:  # cancelled by Dask, which has lost its scheduler
        raise ConnectionError(
            "The engine that did the runs has stopped. Finished runs are kept. Repeat the command to do the rest."
        ) from error
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _append(path: Path, record: dict) -> None:
    """Append one line and wait until it is on disk."""
    torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write(("\n" if torn else "") + to_line(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
