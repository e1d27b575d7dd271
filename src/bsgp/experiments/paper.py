"""The authors' own figures, read from their CSV files, which lie beside the data folder or where told."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = "results.csv"
TIMES_FILE = "training_time.csv"
EXPERIMENTS = ("uci-dgp", "objectives", "structured", "ablation")
FULL_SIZES = ("100", "10000")  # inducing points; the second is that of grids


def paper_file(folder: str | os.PathLike | None, data_dir: str | os.PathLike | None) -> Path | None:
    """`folder`, else `$BSGP_PAPER`, else `../paper` beside the data folder; None where there is no such file."""
    from bsgp.data.named import data_folder

    if folder is not None or os.environ.get("BSGP_PAPER"):
        path = Path(folder or os.environ["BSGP_PAPER"]) / FILE
        if not path.exists():
            raise ValueError(f"The authors' figures must lie at `{path}`, got no such file. Check `--paper-dir`.")
        return path
    try:
        path = data_folder(data_dir).resolve().parent / "paper" / FILE
    except ValueError:
        return None
    return path if path.exists() else None


def authors_mnll(path: Path) -> dict[tuple[str, str, int, int], float]:
    """Test MNLL by (method, dataset, depth, fold), at the paper's full size.

    A method that is in several of their experiments is taken from the first of `EXPERIMENTS`.
    """
    rows = [row for row in _rows(path) if row["num_inducing"] in FULL_SIZES]
    found: dict[tuple[str, str, int, int], float] = {}
    for experiment in EXPERIMENTS:
        for row in rows:
            if row["experiment"] == experiment:
                key = row["method"], row["dataset"], int(row["depth"] or 1), int(row["fold"])
                found.setdefault(key, float(row["test_mnll"]))
    return found


@dataclass(frozen=True)
class Paper:
    """The authors' released figures; empty where they are not at hand."""

    results: Sequence[dict[str, str]] = ()
    """Rows of `results.csv`, as text."""
    times: Sequence[dict[str, str]] = ()
    """Rows of `training_time.csv`."""

    @classmethod
    def read(cls, path: Path | None) -> "Paper":
        if path is None:
            return cls()
        times = path.with_name(TIMES_FILE)
        return cls(_rows(path), _rows(times) if times.exists() else ())

    def by_fold(self, experiment: str, metric: str = "test_mnll", **where: str | int) -> dict[int, float]:
        """`metric` by fold, of the rows of an experiment in which the named columns have the given values."""
        found = {}
        for row in self.results:
            if row["experiment"] == experiment and row[metric] and all(row[k] == str(v) for k, v in where.items()):
                found.setdefault(int(row["fold"]), float(row[metric]))
        return found


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
