"""The authors' own figures, read from their `results.csv`, which lies beside the data folder or where told."""

import csv
import os
from pathlib import Path

FILE = "results.csv"
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
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["num_inducing"] in FULL_SIZES]
    found: dict[tuple[str, str, int, int], float] = {}
    for experiment in EXPERIMENTS:
        for row in rows:
            if row["experiment"] == experiment:
                key = row["method"], row["dataset"], int(row["depth"] or 1), int(row["fold"])
                found.setdefault(key, float(row["test_mnll"]))
    return found
