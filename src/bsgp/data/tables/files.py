"""Reads tables from CSV, TSV, Parquet and Arrow IPC files. Every error is one line that names the file."""

import codecs
import csv
import gzip
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from bsgp.data.tables.columnar import IPC, PARQUET, empty_file_error, open_columnar
from bsgp.data.tables.columns import (
    Column,
    Table,
    all_missing,
    checked_table,
    column_from_arrow,
    column_names,
    quoted,
    shortened,
    table_from_arrow,
)

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
WRITABLE = (*SEPARATORS, *PARQUET)
READABLE = (*WRITABLE, *IPC)
MISSING = ("", "NA", "NaN", "nan", "null", "NULL", "None", "N/A", "?")
"""Cells of CSV and TSV files that count as missing."""
_TRUTH = {"true": 1.0, "false": 0.0}
_BLOCK = 1 << 24  # bytes; a single row must fit into one
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)


def read_table(path: str | os.PathLike) -> Table:
    """Reads a whole file; its ending decides the format: CSV, TSV (gzipped or not), Parquet or Arrow IPC."""
    path = Path(path).expanduser()
    ending = ending_of(path)
    with naming_file(path):
        if path.is_dir():
            raise ValueError(f"`{path}` must be a file, got a folder. Name a file in it.")
        if ending in SEPARATORS:
            return _read_text(path, SEPARATORS[ending])
        with open_columnar(path) as file:
            return table_from_arrow(file.read(), f"`{path}`")


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Turns every error of reading a file into a ValueError of one line that names the file."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"`{path}` must be a file, got no such file. Check its name and folder.") from None
    except PermissionError:
        raise ValueError(f"`{path}` must be readable, got no permission. Change its access rights.") from None
    except UnicodeDecodeError:
        raise _not_utf8_error(path) from None
    except (OSError, EOFError, pa.ArrowException) as error:
        why = shortened(error, 80)
        raise ValueError(f"`{path}` must be complete, got a damaged file ({why}). Copy or download it again.") from None


def ending_of(path: Path) -> str:
    """Returns the ending of a readable table, such as `.csv.gz`; raises on any other."""
    is_sheet = path.suffix.lower() in (".xls", ".xlsx", ".ods")
    return checked_ending(path, READABLE, "Save the sheet as CSV." if is_sheet else "Convert it first.")


def checked_ending(path: Path, known: Sequence[str], advice: str) -> str:
    """Returns the ending of a path among those known; raises with this advice if there is none."""
    ending = next((one for one in known if path.name.lower().endswith(one)), None)
    if ending is None:
        raise ValueError(f"`{path}` must end in {', '.join(known)}, got `{path.suffix or path.name}`. {advice}")
    return ending


def _not_utf8_error(path: Path, where: str = "", encoding: str = "latin1") -> ValueError:
    return ValueError(
        f"`{path}` must be UTF-8 text, got another encoding{where}. "
        f"Save it as UTF-8, for example with `iconv -f {encoding} -t utf-8`."
    )


class CheckedText(io.RawIOBase):
    """The unpacked bytes of a text file. Raises on bytes that are not text, and keeps the last ones in `end`."""

    def __init__(self, path: Path):
        self._path = path
        self._file: Any = gzip.GzipFile(path) if path.name.lower().endswith(".gz") else path.open("rb")
        self._first = True
        self.end = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        block = self._file.read(size)
        if self._first and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise _not_utf8_error(self._path, encoding="utf-16")
        if b"\0" in block:
            raise ValueError(f"`{self._path}` must be text, got NUL bytes: it is binary or damaged. Save it as CSV.")
        self._first = False
        self.end = (self.end + block[-8:])[-8:]
        return block

    def close(self) -> None:
        self._file.close()
        super().close()


def _read_text(path: Path, separator: str) -> Table:
    names = header_of(path, separator)
    cells = _cells(path, separator, names)
    columns = {name: parse_cells(name, cells.column(at)) for at, name in enumerate(names)}
    return checked_table(columns, cells.num_rows, f"`{path}`")


def header_of(path: Path, separator: str) -> list[str]:
    """Returns the column names in the first line; raises if no row follows."""
    with CheckedText(path) as raw, io.TextIOWrapper(cast(Any, raw), encoding="utf-8-sig", newline="") as text:
        rows = (row for row in csv.reader(text, delimiter=separator, strict=True) if row)
        try:
            header = next(rows, None)
        except csv.Error as error:
            raise ValueError(
                f"`{path}` must start with a line of column names, got an error: {shortened(error)}. Check its quotes."
            ) from None
        try:
            has_rows = next(rows, None) is not None
        except csv.Error:  # Arrow reads the rows, and explains this error better
            has_rows = True
    if header is None:
        raise empty_file_error(path)
    if len(header) == 1 and any(other in header[0] for other in ",;\t|"):
        raise ValueError(
            f"`{path}` must have its columns separated by {separator!r}, got the header `{shortened(header[0])}`. "
            "Save it with that separator."
        )
    names = column_names([name.strip() for name in header], f"`{path}`")
    if not has_rows:
        raise ValueError(f"`{path}` must hold rows below its header, got none. Add some rows.")
    return names


def _cells(path: Path, separator: str, names: list[str]) -> Any:
    """Returns every cell below the header as text, in an Arrow table.

    Arrow would guess a column's type from its first block and fail on later ones, and would read `00123` as a number.
    So it only splits the file into cells, and `parse_cells` looks at whole columns.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    def read(use_threads: bool) -> Any:
        with CheckedText(path) as raw:
            return arrow_csv.read_csv(raw, *cell_options(separator, len(names), use_threads)), raw.end

    try:
        try:
            table, end = read(True)
        except pa.ArrowInvalid:
            table, end = read(False)  # slower, but its error names the row
    except pa.ArrowInvalid as error:
        raise explain_parse_error(path, names, str(error)) from None
    check_last_cell(path, table.column(len(names) - 1)[-1].as_py(), end)
    return table.slice(1)


def cell_options(separator: str, num_columns: int, use_threads: bool) -> tuple[Any, Any, Any]:
    """Arrow's options to read, split and convert a text file into text cells. Its errors name rows without threads."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # the header is read as an ordinary row and cut off later: Arrow would take blank lines before it for the header
    labels = [str(at) for at in range(num_columns)]
    return (
        arrow_csv.ReadOptions(column_names=labels, use_threads=use_threads, block_size=_BLOCK),
        arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(labels, pa.string())),
    )


def check_last_cell(path: Path, cell: str | None, end: bytes) -> None:
    """Raises if a quote was never closed: the last cell then holds the rest of the file."""
    if not end.rstrip().endswith(b'"') and "\n" in (cell or ""):
        raise _open_quote_error(path)


def explain_parse_error(path: Path, names: list[str], message: str) -> ValueError:
    """Translates a message of Arrow's CSV reader for the author of the file."""
    ragged = _RAGGED.search(message)
    if ragged:
        row, expected, got, content = ragged.groups()
        return ValueError(
            f"`{path}` must have {expected} values in every row like its header, got {got} in row {int(row) - 1} "
            f"(`{shortened(content)}`), not counting the header. Correct it, or quote values that contain separators."
        )
    if "invalid UTF8" in message:
        column = re.search(r"column #(\d+)", message)
        return _not_utf8_error(path, f" in column {quoted([names[int(column.group(1))]])}" if column else "")
    if "straddling" in message:
        return _open_quote_error(path)
    return ValueError(f"`{path}` must be a table of text, got an error: {shortened(message, 80)}. Correct the file.")


def _open_quote_error(path: Path) -> ValueError:
    return ValueError(f"`{path}` must close every quote, got one that runs to the end of the file. Close or remove it.")


def parse_cells(name: str, cells: Any, *, as_text: bool = False) -> Column:
    """Parses a column of text as the first of these that fits all its cells: numbers, booleans, dates, text.

    `as_text` skips numbers and booleans, for columns that are known to hold text in other rows.
    """
    import pyarrow as pa

    compute = arrow_compute()
    numbers = None if as_text else _numbers(cells)  # succeeds for most columns of numbers
    if numbers is not None:
        return numbers
    cells = compute.utf8_trim_whitespace(cells)
    cells = compute.if_else(compute.is_in(cells, value_set=pa.array(MISSING)), pa.scalar(None, pa.string()), cells)
    if cells.null_count == len(cells):
        return all_missing(len(cells))
    numbers = None if as_text else _numbers(cells)
    if numbers is not None:
        return numbers
    text = column_from_arrow(name, cells)
    truth = {cell: _TRUTH.get(cell.lower()) for cell in set(text.values) if cell is not None}
    if as_text or None in truth.values():
        return text
    return Column("boolean", np.array([truth.get(cell, np.nan) for cell in text.values]))


def _numbers(cells: Any) -> Column | None:
    """Parses the cells as numbers; None if some are not."""
    import pyarrow as pa

    if _has_leading_zeros(cells):
        return None
    try:
        return Column("number", arrow_compute().cast(cells, pa.float64()).to_numpy().copy())
    except pa.ArrowInvalid:
        return None


def _has_leading_zeros(cells: Any) -> bool:
    """Whether some cells are codes such as 00123, whose leading zeros a number would lose."""
    compute = arrow_compute()
    candidates = cells.filter(compute.starts_with(cells, "0"))  # a cheap filter: regular expressions are slow
    return bool(compute.any(compute.match_substring_regex(candidates, "^0[0-9]+$")).as_py())


def arrow_compute() -> Any:
    """`pyarrow.compute`, untyped: it creates its functions at import, where no type checker sees them."""
    import pyarrow.compute

    return pyarrow.compute
