"""Writes tables to CSV, TSV and Parquet files, atomically."""

import csv
import gzip
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bsgp.data.tables.columnar import PARQUET
from bsgp.data.tables.columns import quoted, shortened
from bsgp.data.tables.files import SEPARATORS, WRITABLE, arrow_compute, checked_ending, ending_of
from bsgp.runtime.files import replacing


def check_table_path(path: str | os.PathLike) -> Path:
    """Returns the path; raises if no table can be written there. Call it before a long computation."""
    path = Path(path).expanduser()
    checked_ending(path, WRITABLE, "Choose one of these.")
    if os.path.isdir(path):  # unlike `Path.is_dir`, does not raise without permission
        raise ValueError(f"`{path}` must be a file, got a folder. Name a file in it.")
    if not os.path.isdir(path.parent):
        raise ValueError(f"`{path}` must be in a folder that exists, got no `{path.parent}`. Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"`{path}` must be in a writable folder, got no permission. Choose another folder.")
    return path


def write_table(path: str | os.PathLike, columns: Mapping[str, np.ndarray]) -> None:
    """Writes columns to a file, in the format of its ending and atomically. Missing values become empty cells."""
    with TableWriter(path) as writer:
        writer.write(columns)


class TableWriter:
    """Writes a table in parts, in the format of the file's ending. The file appears when the `with` block ends.

    Every call of `write` must pass the same columns. Missing values become empty cells. If the block raises, the file
    is left as it was.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = check_table_path(path)
        self._ending = ending_of(self.path)
        self._names: list[str] = []
        self._parquet: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> "TableWriter":
        with self._explaining_errors():
            self._file: Any = self._stack.enter_context(replacing(self.path))
        if self._ending.endswith(".gz"):
            packed = gzip.GzipFile(filename="", fileobj=self._file, mode="wb", compresslevel=6, mtime=0)
            self._file = self._stack.enter_context(packed)
        return self

    def __exit__(self, *error: Any) -> None:
        empty = None
        if error[0] is None and not self._names:
            empty = ValueError(f"`{self.path}` must be given rows to write, got none. Write some.")
            error = (ValueError, empty, None)
        with self._explaining_errors():
            self._stack.__exit__(*error)  # on an error, the old file stays
        if empty is not None:
            raise empty

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        """Appends rows: flat arrays of one length."""
        import pyarrow as pa

        table = pa.table({name: _arrow(name, values) for name, values in _same_length(columns).items()})
        if self._names and table.column_names != self._names:
            raise ValueError(
                f"`columns` must be those of the first call ({quoted(self._names)}), got {quoted(table.column_names)}. "
                "Write the same columns each time."
            )
        with self._explaining_errors():
            if self._ending in PARQUET:
                self._write_parquet(table)
            else:
                _write_text(table, self._file, SEPARATORS[self._ending], with_header=not self._names)
        self._names = table.column_names

    def _write_parquet(self, table: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._parquet is None:
            self._parquet = self._stack.enter_context(pq.ParquetWriter(self._file, table.schema))
        try:
            self._parquet.write_table(table.cast(self._parquet.schema))
        except pa.ArrowException as error:
            raise ValueError(
                f"`columns` must keep the types of the first call, got others ({shortened(error, 80)}). Convert them."
            ) from None

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = shortened(error.strerror or error)
            raise ValueError(f"`{self.path}` must be writable, got an error: {why}. Choose another folder.") from None


def _same_length(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays = {str(name): np.asarray(values) for name, values in columns.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or any(len(shape) != 1 for shape in shapes):
        raise ValueError(
            f"`columns` must be flat arrays of one length, got the shapes {shortened(sorted(shapes))}. Align them."
        )
    return arrays


def _arrow(name: str, values: np.ndarray) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values, from_pandas=True)  # NaN becomes missing
    except (pa.ArrowException, TypeError, ValueError):
        raise ValueError(
            f"`{shortened(name)}` must hold values of one kind, got dtype {values.dtype}. Convert it to text."
        ) from None


def _write_text(table: Any, file: Any, separator: str, *, with_header: bool) -> None:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if table.num_columns == 1:  # an empty cell would be a blank line, which readers skip
        table = pa.table({table.column_names[0]: arrow_compute().fill_null(table.column(0).cast(pa.string()), "NA")})
    if with_header:
        header = io.StringIO()
        csv.writer(header, delimiter=separator, lineterminator="\n").writerow(table.column_names)
        file.write(header.getvalue().encode())  # Arrow would quote every name
    arrow_csv.write_csv(table, file, arrow_csv.WriteOptions(include_header=False, delimiter=separator))
