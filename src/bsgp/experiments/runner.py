"""Many independent runs: a finished run is never lost and never run again, wherever it was done.

Results are one JSON object per line in `RUNS/runs.jsonl`, which the campaign alone writes. A run's own process leaves
its record in `RUNS/finished` first, from where it is taken in if it does not arrive otherwise. Who does the runs is up
to `engines`.
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

from bsgp.experiments.engines import LocalProcesses, Outcome, as_executor, read_record, run_in_fresh_process
from bsgp.experiments.experiment import Run

RESULTS = "runs.jsonl"
FAILURES = "failures.jsonl"
FINISHED = "finished"


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


def take_in(folder: str | os.PathLike) -> set[str]:
    """Append what was finished for a campaign that was gone by then; returns the keys of all finished runs."""
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
    runs: Sequence[Run],
    folder: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    n_jobs: int = 1,
    client: Any = None,
    on_done: Callable[[Run, dict | None], None] = lambda run, record: None,
) -> list[Run]:
    """Run what is not in `folder` yet, in the order given; returns the runs that failed twice.

    `client` does the runs: any `concurrent.futures.Executor`, or a `distributed.Client`. Without one they are done
    here, `n_jobs` at a time.
    """
    folder = Path(folder).absolute()  # workers have another working directory
    (folder / FINISHED).mkdir(parents=True, exist_ok=True)
    finished = take_in(folder)
    waiting = {run.key: run for run in runs if run.key not in finished}
    failed = []
    with LocalProcesses(n_jobs) if client is None else nullcontext(as_executor(client)) as executor:
        futures: dict[Future, Run] = {}
        try:
            for run in waiting.values():
                futures[executor.submit(run_in_fresh_process, _task(run, data_dir), str(_kept(folder, run)))] = run
            for future in as_completed(futures):
                run, (record, error) = futures.pop(future), _outcome(future)
                del future  # Dask does a run again whose future somebody holds, if the worker that did it dies
                if record is None:
                    failed.append(run)
                    _append(folder / FAILURES, {"key": run.key, "error": error})
                else:
                    _append(folder / RESULTS, record)
                    _kept(folder, run).unlink(missing_ok=True)
                on_done(run, record)
        except BaseException:  # Ctrl-C, too; what runs elsewhere goes on, and is taken in by the next campaign
            for future in futures:
                future.cancel()
            raise
    return failed


def _task(run: Run, data_dir: str | os.PathLike | None) -> str:
    """What `worker` reads."""
    settings = asdict(run)  # pyright: ignore[reportArgumentType]: a protocol cannot say that it is a dataclass
    place = None if data_dir is None else str(Path(data_dir).absolute())
    return json.dumps({"kind": run.kind, "run": settings, "data_dir": place})


def _kept(folder: Path, run: Run) -> Path:
    """Where the process of a run leaves its record. A key has slashes, and may be longer than a file's name."""
    return folder / FINISHED / f"{hashlib.sha256(run.key.encode()).hexdigest()[:32]}.json"


def _outcome(future: Future) -> Outcome:
    """What an engine says of a run that it could not do, such as Dask's `KilledWorker`, is an error like any other."""
    try:
        return future.result()
    except CancelledError as error:  # not by us: Dask does so when it loses its scheduler
        raise ConnectionError(
            "The engine that did the runs is gone. Finished runs are kept: the same command goes on with the rest."
        ) from error
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _append(path: Path, record: dict) -> None:
    """One line, on the disk before the next run is begun."""
    torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write(("\n" if torn else "") + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
