"""Tables in CSV, TSV, Parquet and Arrow IPC files. Whatever is wrong with a file is said in one line, with its name."""

import codecs
import csv
import gzip
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from bsgp.data.columnar import IPC, PARQUET, empty_file, open_columnar
from bsgp.data.tables import (
    Column,
    Table,
    all_missing,
    checked_table,
    column_from_arrow,
    column_names,
    shown,
    table_from_arrow,
    ticked,
)
from bsgp.disk import replacing

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
WRITABLE = (*SEPARATORS, *PARQUET)
READABLE = (*WRITABLE, *IPC)
MISSING = ("", "NA", "NaN", "nan", "null", "NULL", "None", "N/A", "?")
"""The words that stand for no value in CSV and TSV files."""
_TRUTH = {"true": 1.0, "false": 0.0}
_BLOCK = 1 << 24  # bytes; a single row must fit into one
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)


def read_table(path: str | os.PathLike) -> Table:
    """The table in a file of CSV, TSV (both also gzipped), Parquet or Arrow IPC, by its ending."""
    path = Path(path).expanduser()
    ending = ending_of(path)
    with explaining(path):
        if path.is_dir():
            raise ValueError(f"`{path}` must be a file, got a folder. Name a file in it.")
        if ending in SEPARATORS:
            return _read_text(path, SEPARATORS[ending])
        with open_columnar(path) as file:
            return table_from_arrow(file.read(), f"`{path}`")


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a file is read becomes one line with its name."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"`{path}` must be a file, got no such file. Check its name and folder.") from None
    except PermissionError:
        raise ValueError(f"`{path}` must be readable, got no permission. Change its access rights.") from None
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except (OSError, EOFError, pa.ArrowException) as error:
        raise ValueError(f"`{path}` must be whole, got a damaged file ({shown(error, 80)}). Fetch it again.") from None


def ending_of(path: Path) -> str:
    """One of a table that can be read."""
    is_sheet = path.suffix.lower() in (".xls", ".xlsx", ".ods")
    return _ending(path, READABLE, "Save the sheet as CSV." if is_sheet else "Convert it first.")


def _ending(path: Path, known: Sequence[str], advice: str) -> str:
    ending = next((one for one in known if path.name.lower().endswith(one)), None)
    if ending is None:
        raise ValueError(f"`{path}` must end in {', '.join(known)}, got `{path.suffix or path.name}`. {advice}")
    return ending


def _not_utf8(path: Path, where: str = "", encoding: str = "latin1") -> ValueError:
    return ValueError(
        f"`{path}` must be UTF-8 text, got another encoding{where}. "
        f"Save it as UTF-8, for example with `iconv -f {encoding} -t utf-8`."
    )


class WatchedText(io.RawIOBase):
    """The bytes of a text file as they are read: those of no text are refused, and its end is remembered."""

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
            raise _not_utf8(self._path, encoding="utf-16")
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
    """The names in the first line, once it is sure that another line follows."""
    with WatchedText(path) as raw, io.TextIOWrapper(cast(Any, raw), encoding="utf-8-sig", newline="") as text:
        rows = (row for row in csv.reader(text, delimiter=separator, strict=True) if row)
        try:
            header = next(rows, None)
        except csv.Error as error:
            raise ValueError(
                f"`{path}` must begin with a line of column names, got an error: {shown(error)}. Check its quotes."
            ) from None
        try:
            has_rows = next(rows, None) is not None
        except csv.Error:  # the reader below is the judge of it
            has_rows = True
    if header is None:
        raise empty_file(path)
    if len(header) == 1 and any(other in header[0] for other in ",;\t|"):
        raise ValueError(
            f"`{path}` must have its columns separated by {separator!r}, got the header `{shown(header[0])}`. "
            "Save it with that separator."
        )
    names = column_names([name.strip() for name in header], f"`{path}`")
    if not has_rows:
        raise ValueError(f"`{path}` must hold rows below its header, got none. Add some data.")
    return names


def _cells(path: Path, separator: str, names: list[str]) -> Any:
    """Every cell below the header as text.

    Arrow guesses a column's type from its first block and fails on later ones, and reads `00123` as a number; so it
    splits the file into cells, and `parse_cells` looks at whole columns.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    def read(use_threads: bool) -> Any:
        with WatchedText(path) as raw:
            return arrow_csv.read_csv(raw, *cell_options(separator, len(names), use_threads)), raw.end

    try:
        try:
            table, end = read(True)
        except pa.ArrowInvalid:
            table, end = read(False)  # slower, but its message says which row
    except pa.ArrowInvalid as error:
        raise explained(path, names, str(error)) from None
    check_last_cell(path, table.column(len(names) - 1)[-1].as_py(), end)
    return table.slice(1)


def cell_options(separator: str, num_columns: int, use_threads: bool) -> tuple[Any, Any, Any]:
    """How Arrow reads, splits and converts a text file: every cell stays text. Only without threads it counts rows."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # the header is read as a row like others and cut off: Arrow would count blank lines before it as the header
    labels = [str(at) for at in range(num_columns)]
    return (
        arrow_csv.ReadOptions(column_names=labels, use_threads=use_threads, block_size=_BLOCK),
        arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(labels, pa.string())),
    )


def check_last_cell(path: Path, cell: str | None, end: bytes) -> None:
    """A quote that is never closed makes the last cell swallow the rest of the file."""
    if not end.rstrip().endswith(b'"') and "\n" in (cell or ""):
        raise _open_quote(path)


def explained(path: Path, names: list[str], message: str) -> ValueError:
    """What Arrow's message means to whoever wrote the file."""
    ragged = _RAGGED.search(message)
    if ragged:
        row, expected, got, content = ragged.groups()
        return ValueError(
            f"`{path}` must have {expected} values in every row like its header, got {got} in row {int(row) - 1} "
            f"(`{shown(content)}`), the header not counted. Correct it, or quote values with separators inside."
        )
    if "invalid UTF8" in message:
        column = re.search(r"column #(\d+)", message)
        return _not_utf8(path, f" in column {ticked([names[int(column.group(1))]])}" if column else "")
    if "straddling" in message:
        return _open_quote(path)
    return ValueError(f"`{path}` must be a table in text, got an error: {shown(message, 80)}. Correct it.")


def _open_quote(path: Path) -> ValueError:
    return ValueError(f"`{path}` must close every quote, got one that runs to the end of the file. Close or remove it.")


def parse_cells(name: str, cells: Any, *, as_text: bool = False) -> Column:
    """A column of words as numbers, booleans, dates or text: the first of these that all its words are.

    `as_text` keeps the words, where it is known from other rows that they are text.
    """
    import pyarrow as pa

    compute = _compute()
    numbers = None if as_text else _numbers(cells)  # most columns of numbers have no space and nothing missing
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
    truth = {word: _TRUTH.get(word.lower()) for word in set(text.values) if word is not None}
    if as_text or None in truth.values():
        return text
    return Column("boolean", np.array([truth.get(word, np.nan) for word in text.values]))


def _numbers(cells: Any) -> Column | None:
    """The cells as numbers, if all of them are, or none."""
    import pyarrow as pa

    if _has_leading_zeros(cells):
        return None
    try:
        return Column("number", _compute().cast(cells, pa.float64()).to_numpy().copy())
    except pa.ArrowInvalid:
        return None


def _has_leading_zeros(cells: Any) -> bool:
    """Whether some are digits such as 00123, which name something: their zeros would be lost in a number."""
    compute = _compute()
    candidates = cells.filter(compute.starts_with(cells, "0"))  # most columns have few; the pattern is dear
    return bool(compute.any(compute.match_substring_regex(candidates, "^0[0-9]+$")).as_py())


def _compute() -> Any:
    """Arrow makes these functions as it is imported, where no type checker sees them."""
    import pyarrow.compute

    return pyarrow.compute


def check_table_path(path: str | os.PathLike) -> Path:
    """The path, once it is sure that a table can be written there: worth asking before a long computation."""
    path = Path(path).expanduser()
    _ending(path, WRITABLE, "Choose one of these.")
    if os.path.isdir(path):  # unlike `Path.is_dir`, it does not raise where the folder is closed to us
        raise ValueError(f"`{path}` must be a file, got a folder. Name a file in it.")
    if not os.path.isdir(path.parent):
        raise ValueError(f"`{path}` must lie in a folder that exists, got no `{path.parent}`. Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"`{path}` must lie in a writable folder, got no permission. Choose another folder.")
    return path


def write_table(path: str | os.PathLike, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns by the file's ending: whole, or not at all. Missing values are left empty."""
    with TableWriter(path) as writer:
        writer.write(columns)


class TableWriter:
    """Writes a table by the file's ending, some rows at a time: the file is there when all is written, or not at all.

    Use it in a `with` statement; every call of `write` has the columns of the first. Missing values are left empty.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = check_table_path(path)
        self._ending = ending_of(self.path)
        self._names: list[str] = []
        self._parquet: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> "TableWriter":
        with self._complaining():
            self._file: Any = self._stack.enter_context(replacing(self.path))
        if self._ending.endswith(".gz"):
            packed = gzip.GzipFile(filename="", fileobj=self._file, mode="wb", compresslevel=6, mtime=0)
            self._file = self._stack.enter_context(packed)
        return self

    def __exit__(self, *error: Any) -> None:
        nothing = None
        if error[0] is None and not self._names:
            nothing = ValueError(f"`{self.path}` must be given rows to write, got none. Write some.")
            error = (ValueError, nothing, None)
        with self._complaining():
            self._stack.__exit__(*error)  # an error lets the old file stay
        if nothing is not None:
            raise nothing

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append rows: flat arrays of one length."""
        import pyarrow as pa

        table = pa.table({name: _arrow(name, values) for name, values in _same_length(columns).items()})
        if self._names and table.column_names != self._names:
            raise ValueError(
                f"`columns` must be those of the first rows ({ticked(self._names)}), got {ticked(table.column_names)}. "
                "Write the same columns each time."
            )
        with self._complaining():
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
                f"`columns` must keep the types of the first rows, got others ({shown(error, 80)}). Convert them."
            ) from None

    @contextmanager
    def _complaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = shown(error.strerror or error)
            raise ValueError(f"`{self.path}` must be writable, got an error: {why}. Choose another folder.") from None


def _same_length(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays = {str(name): np.asarray(values) for name, values in columns.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or any(len(shape) != 1 for shape in shapes):
        raise ValueError(
            f"`columns` must be flat arrays of one length, got the shapes {shown(sorted(shapes))}. Pass one per column."
        )
    return arrays


def _arrow(name: str, values: np.ndarray) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values, from_pandas=True)  # NaN counts as missing
    except (pa.ArrowException, TypeError, ValueError):
        raise ValueError(
            f"`{shown(name)}` must hold values of one kind, got dtype {values.dtype}. Convert it to text or numbers."
        ) from None


def _write_text(table: Any, file: Any, separator: str, *, with_header: bool) -> None:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if table.num_columns == 1:  # a missing value would be a blank line, which readers skip
        table = pa.table({table.column_names[0]: _compute().fill_null(table.column(0).cast(pa.string()), "NA")})
    if with_header:
        header = io.StringIO()
        csv.writer(header, delimiter=separator, lineterminator="\n").writerow(table.column_names)
        file.write(header.getvalue().encode())  # not by Arrow, which puts every name in quotes
    arrow_csv.write_csv(table, file, arrow_csv.WriteOptions(include_header=False, delimiter=separator))
