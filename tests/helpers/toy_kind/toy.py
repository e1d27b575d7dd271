"""A kind of runs that needs neither JAX nor time: it tests what becomes of records."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class ToyRun:
    """Settings of a toy run."""

    kind: ClassVar[str] = "toy"
    fold: int
    begun: str
    """File that gets a line whenever a run is started."""
    seconds: float = 0.0
    deed: str = ""

    @property
    def key(self) -> str:
        return f"toy/fold{self.fold}"


Settings = ToyRun


def run(settings: ToyRun, data_dir: str | None) -> dict:
    """Return a record like that of a `uci` run."""
    note_start(settings.begun, settings.key)
    time.sleep(settings.seconds)
    if settings.deed == "fail":
        raise ValueError("a failure on purpose")
    if settings.deed == "kill the worker":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    record = {
        "kind": "uci", "dataset": "yacht", "fold": settings.fold, "depth": 1, "method": "bsgp", "recipe": "default",
        "num_inducing": 100, **scores(settings.fold),
    }  # fmt: skip
    foreign = [name for name in ("jax", "distributed") if name in sys.modules]
    cores, threads = len(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"]
    return record | {"cores": cores, "threads": threads, "foreign": foreign}


def run_instead_of_uci(settings, data_dir: str | None) -> dict:
    """Stand-in for `kinds.uci.run` in processes that the command line starts. Later folds take longer."""
    note_start(os.environ["TOY_BEGUN"], settings.key)
    time.sleep(5.0 * settings.fold if os.environ.get("TOY_IS_SLOW") else 0.0)
    return vars(settings) | scores(settings.fold)


def scores(fold: int) -> dict:
    return {
        "test_mnll": fold * 37 % 11 / 7, "test_nrmse": 0.1, "coverage90": 0.9, "evaluations": 1, "cpu_seconds": 0.0,
    }  # fmt: skip


def note_start(path: str, key: str) -> None:
    with open(path, "a") as file:
        file.write(key + "\n")
