"""Reader of the authors' own results, from their CSV files."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = "results.csv"
TIMES_FILE = "training_time.csv"
EXPERIMENTS = ("uci-dgp", "objectives", "structured", "ablation")
"""The authors' experiments, those that we prefer first."""
FULL_SIZES = ("100", "10000")
"""Numbers of inducing points at the paper's full size. The second is that of grids."""


def paper_file(folder: str | os.PathLike | None, data_dir: str | os.PathLike | None) -> Path | None:
    """Path of the authors' `results.csv`, in `folder`, else in the folder that the variable BSGP_PAPER names.

    If neither is given, the folder `paper` beside the data folder is tried. Returns None if it has no such file.
    """
    from bsgp.experiments.datasets.named import data_folder

    chosen = folder or os.environ.get("BSGP_PAPER")
    if chosen:
        path = Path(chosen) / FILE
        if not path.exists():
            raise ValueError(f"The authors' results must be at `{path}`, got no such file. Check `--paper-dir`.")
        return path
    try:
        path = data_folder(data_dir).resolve().parent / "paper" / FILE
    except ValueError:  # no data folder
        return None
    return path if path.exists() else None


def authors_mnll(path: Path) -> dict[tuple[str, str, int, int], float]:
    """Test MNLL by (method, dataset, depth, fold), at the paper's full size.

    For a method in several of their experiments the first one in `EXPERIMENTS` counts.
    """
    rows = [row for row in _rows(path) if row["num_inducing"] in FULL_SIZES]
    scores: dict[tuple[str, str, int, int], float] = {}
    for experiment in EXPERIMENTS:
        for row in rows:
            if row["experiment"] == experiment:
                key = row["method"], row["dataset"], int(row["depth"] or 1), int(row["fold"])
                scores.setdefault(key, float(row["test_mnll"]))
    return scores


@dataclass(frozen=True)
class Paper:
    """The authors' released results. Empty if they are not available."""

    results: Sequence[dict[str, str]] = ()
    """Rows of `results.csv`, as text."""
    times: Sequence[dict[str, str]] = ()
    """Rows of `training_time.csv`, as text."""

    @classmethod
    def read(cls, path: Path | None) -> "Paper":
        """Read `results.csv`, and `training_time.csv` beside it if it exists."""
        if path is None:
            return cls()
        times = path.with_name(TIMES_FILE)
        return cls(_rows(path), _rows(times) if times.exists() else ())

    def by_fold(self, experiment: str, metric: str = "test_mnll", **where: str | int) -> dict[int, float]:
        """Values of `metric` by fold, from the rows of an experiment whose columns have the values in `where`."""
        values = {}
        for row in self.results:
            if row["experiment"] == experiment and row[metric] and all(row[k] == str(v) for k, v in where.items()):
                values.setdefault(int(row["fold"]), float(row[metric]))
        return values


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
