"""The authors' own figures, read from their `results.csv`, which lies beside the data folder or where told."""

import csv
import os
from pathlib import Path

FILE = "results.csv"


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


def authors_mnll(path: Path, *, experiment: str = "uci-dgp") -> dict[tuple[str, str, int, int], float]:
    """Test MNLL by (method, dataset, depth, fold)."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["experiment"] == experiment]
    return {
        (row["method"], row["dataset"], int(row["depth"]), int(row["fold"])): float(row["test_mnll"]) for row in rows
    }
