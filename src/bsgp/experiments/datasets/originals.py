"""Reader of the original files of the two large classification sets, if the data folder has them.

The originals are far larger than the staged files. They have no checksum here, so every row is checked. Rows are
float32 and are streamed into one array: HIGGS takes 1.3 GB, and little more while it is read.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bsgp.experiments.datasets.named import data_folder, schemas
from bsgp.runtime.checks import check_option

HIGGS_FILES = "HIGGS.csv.gz", "HIGGS.csv"
FLIGHT_FILES = "2008.csv.bz2", "2008.csv"
PLANE_FILE = "plane-data.csv"
FLIGHT_NUMBERS = (
    "Year", "Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "AirTime", "ArrDelay", "Distance"
)  # fmt: skip
MISSING = ["", "NA"]
BLOCK_BYTES = 1 << 22  # small, because pyarrow reads many blocks ahead
FIRST_ROWS = 1 << 16
GROWTH = 1.125  # factor by which a full array grows; it also bounds the memory taken beyond the data


def load_original(name: str, folder: str | os.PathLike | None = None) -> tuple[np.ndarray, np.ndarray] | None:
    """Read `X [N D]` and `y [N 1]` in float32, raw units, the file's row order and the columns of `load_named`.

    Returns None if the folder does not have the files. Files with other contents raise a `ValueError`.
    """
    return _READERS[check_option("dataset", name, list(_READERS))](data_folder(folder))


def _find(folder: Path, names: Sequence[str]) -> Path | None:
    # a listing, because a file system that ignores case would take our own `higgs.csv.gz` for `HIGGS.csv.gz`
    present = set(os.listdir(folder))
    return next((folder / name for name in names if name in present), None)


def _read_higgs(folder: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Read HIGGS: no header, the label first, then the features."""
    path = _find(folder, HIGGS_FILES)
    if path is None:
        return None
    schema = schemas()["higgs"]
    columns = (*schema.targets, *schema.inputs)
    rows = _GrowingTable(len(columns))
    for batch in _batches(path, columns, has_header=False, text=()):
        block = np.stack([_numbers(batch, name) for name in columns], axis=1)
        bad = ~np.isfinite(block).all(axis=1) | ~np.isin(block[:, 0], (0.0, 1.0))
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"`{path}` must hold a label 0 or 1 and {len(schema.inputs)} finite numbers in every row, "
                f"got {block[row, :4].tolist()}... in row {rows.count + row + 1}. Fetch it again."
            )
        rows.append(block)
    table = rows.array()
    return table[:, 1:], table[:, :1]


def _read_flights(folder: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Read the flights of 2008 that arrived, by planes of a known year: the rules by which the staged file was made."""
    import pyarrow as pa
    import pyarrow.compute as pc

    path = _find(folder, FLIGHT_FILES)
    if path is None:
        return None
    built = _plane_years(folder)
    tails, years = pa.array(list(built), pa.string()), np.asarray(list(built.values()), np.float32)
    rows, num_read = _GrowingTable(len(schemas()["airline"].inputs) + 1), 0
    for batch in _batches(path, (*FLIGHT_NUMBERS, "TailNum"), has_header=True, text=("TailNum",)):
        flight = {name: _numbers(batch, name) for name in FLIGHT_NUMBERS}
        place = pc.index_in(batch["TailNum"], value_set=tails)  # pyright: ignore[reportAttributeAccessIssue]: made at import
        place = np.asarray(place.fill_null(len(years)))
        age = flight["Year"] - np.append(years, np.float32(np.nan))[place]
        columns = (
            flight["Month"], flight["DayofMonth"], flight["DayOfWeek"], flight["AirTime"], flight["Distance"],
            _minutes(flight["ArrTime"]), _minutes(flight["DepTime"]), age, flight["ArrDelay"],
        )  # fmt: skip
        block = np.stack(columns, axis=1)
        # missing values are NaN by now: cancelled and diverted flights, and planes of an unknown year
        block = block[np.isfinite(block).all(axis=1) & (age >= 0)]
        block[:, -1] = block[:, -1] > 0
        rows.append(block)
        num_read += batch.num_rows
    if rows.count == 0:
        raise ValueError(
            f"`{path}` must hold flights that arrived, by planes in `{PLANE_FILE}`, got none among {num_read} rows. "
            "Fetch both again."
        )
    table = rows.array()
    return table[:, :-1], table[:, -1:]


_READERS = {"airline": _read_flights, "higgs": _read_higgs}


def _minutes(clock: np.ndarray) -> np.ndarray:
    """Minutes since midnight of a clock time hhmm; 2400 is 1440."""
    return 60.0 * (clock // 100.0) + clock % 100.0


def _plane_years(folder: Path) -> dict[str, float]:
    """Known years of manufacture by tail number. Many rows have a tail number and nothing else."""
    path = folder / PLANE_FILE
    if not path.exists():
        raise ValueError(
            f"`{PLANE_FILE}` must be in `{folder}` beside the flights, got no such file. "
            "Fetch it from the same Data Expo: the ages of the planes come from it."
        )
    with path.open(newline="", encoding="latin-1") as file:
        reader = csv.DictReader(file)
        if not {"tailnum", "year"} <= set(reader.fieldnames or ()):
            raise ValueError(
                f"`{path}` must have the columns `tailnum` and `year`, got {reader.fieldnames}. Fetch it again."
            )
        years = {row["tailnum"]: (row["year"] or "").strip() for row in reader}
    return {tail: float(year) for tail, year in years.items() if year.isdigit() and int(year) > 0}


def _batches(path: Path, columns: Sequence[str], *, has_header: bool, text: Sequence[str]) -> Iterator[Any]:
    """Record batches of a CSV file, decompressed by its ending. All columns except `text` are numbers."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    read = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, column_names=None if has_header else list(columns))
    convert = arrow_csv.ConvertOptions(
        include_columns=list(columns),
        column_types={name: pa.string() if name in text else pa.float32() for name in columns},
        null_values=MISSING,
        strings_can_be_null=True,
    )
    try:
        with arrow_csv.open_csv(path, read_options=read, convert_options=convert) as reader:
            yield from reader
    except (pa.ArrowException, OSError, EOFError) as error:
        shape = f"columns {', '.join(columns)}" if has_header else f"{len(columns)} numbers in every row and no header"
        raise ValueError(f"`{path}` must hold {shape}, got: {error}. Fetch it again.") from error


def _numbers(batch: Any, name: str) -> np.ndarray:
    """Values of a column, NaN where it is empty."""
    return batch[name].to_numpy(zero_copy_only=False)


class _GrowingTable:
    """A float32 table that grows in place, so that memory never holds it twice."""

    def __init__(self, num_columns: int):
        self._table = np.empty((FIRST_ROWS, num_columns), np.float32)
        self.count = 0

    def append(self, block: np.ndarray) -> None:
        wanted = self.count + len(block)
        if wanted > len(self._table):
            self._resize(max(wanted, int(GROWTH * len(self._table))))
        self._table[self.count : wanted] = block
        self.count = wanted

    def array(self) -> np.ndarray:
        """All rows, without the spare ones."""
        self._resize(self.count)
        return self._table

    def _resize(self, num_rows: int) -> None:
        self._table.resize((num_rows, self._table.shape[1]), refcheck=False)  # no one else refers to the array
