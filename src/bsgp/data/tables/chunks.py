"""Reads tables larger than memory in chunks: text, Parquet and Arrow IPC files, folders of files, Arrow streams."""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bsgp.data.tables.columnar import IPC, PARQUET, open_columnar
from bsgp.data.tables.columns import (
    OBJECT_KINDS,
    Column,
    Table,
    all_missing,
    checked_table,
    column_names,
    quoted,
    shortened,
    table_from_arrow,
)
from bsgp.data.tables.files import (
    SEPARATORS,
    CheckedText,
    cell_options,
    check_last_cell,
    ending_of,
    explain_parse_error,
    header_of,
    naming_file,
    parse_cells,
)
from bsgp.runtime.checks import check_count

CHUNK_ROWS = 100_000
_CHUNK_CELLS = 5_000_000  # 40 MB of float64: chunks of wide tables have fewer rows
_SAMPLE = 1 << 20  # bytes of a text file from which its size is estimated


class TableSize(NamedTuple):
    """Size of a table in memory."""

    num_rows: int | None
    """None if only reading the whole table would tell."""
    bytes_in_memory: int
    """8 bytes per cell; an estimate if the number of rows is unknown."""


def read_chunks(
    source: Any,
    *,
    columns: Sequence[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    rows: int = CHUNK_ROWS,
) -> Iterator[Table]:
    """Yields the rows of a file, of a folder of Parquet or Arrow files, or of an Arrow stream, in order.

    Each chunk decides the kinds of its columns, unless `kinds` gives the kind of a whole column: a `text` column keeps
    words that look like numbers, and a chunk in which all values are missing takes the given kind.
    """
    check_count("rows", rows)
    kinds = dict(kinds or {})
    if not isinstance(source, str | os.PathLike):
        return _arrow_chunks(source, columns, kinds, rows)
    path = Path(source).expanduser()
    if path.is_dir() or ending_of(path) not in SEPARATORS:
        return _columnar_chunks(path, columns, kinds, rows)
    return _text_chunks(path, columns, kinds, rows)


def table_columns(path: str | os.PathLike) -> list[str]:
    """Returns the names of a table's columns, without reading its rows."""
    path = Path(path).expanduser()
    first = source_files(path)[0]
    ending = ending_of(first)
    with naming_file(first):
        if ending in SEPARATORS:
            return header_of(first, SEPARATORS[ending])
        with open_columnar(first) as file:
            return _names(file.schema, f"`{first}`")


def source_files(path: Path) -> list[Path]:
    """Returns the file itself, or the data files of a folder sorted by name; skips `.hidden` and `_metadata` files."""
    with naming_file(path):
        if not path.is_dir():
            ending_of(path)
            path.stat()  # raises if there is no such file
            return [path]
        found = [one for one in path.iterdir() if one.name.lower().endswith((*PARQUET, *IPC))]
    files = sorted((one for one in found if not one.name.startswith((".", "_"))), key=lambda one: one.name)
    if not files:
        raise ValueError(
            f"`{path}` must hold Parquet or Arrow files, got a folder without any. Name a file or another folder."
        )
    other = [one for one in files if (ending_of(one) in PARQUET) != (ending_of(files[0]) in PARQUET)]
    if other:  # probably one table in two formats, whose rows would count twice
        raise ValueError(
            f"`{path}` must hold Parquet files or Arrow files, got both: `{files[0].name}` and `{other[0].name}`. "
            "Move the files of one format elsewhere."
        )
    return files


def _select_names(names: list[str], columns: Sequence[str] | None, source: str) -> list[str]:
    """Returns the columns to read, in the table's order; raises if one is not in the table."""
    names = column_names(names, source)
    if columns is None:
        return names
    wanted = Table({name: all_missing(0) for name in names}, 0).select(columns).columns
    return [name for name in names if name in wanted]


def _chunk_size(rows: int, num_columns: int) -> int:
    return min(rows, max(1, _CHUNK_CELLS // max(num_columns, 1)))


def _of_kind(column: Column, kind: str | None) -> Column:
    """Converts a chunk's column to the kind of the whole column: dates to text, all-missing values to any kind."""
    if (column.kind, kind) == ("date", "text"):
        return Column("text", column.values)
    if kind not in (None, column.kind) and column.kind == "number" and np.isnan(column.values).all():
        is_text = kind in OBJECT_KINDS
        return Column(kind, np.full(len(column.values), None, dtype=object) if is_text else column.values)
    return column


def _rebatched(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """Regroups Arrow batches of any size into tables of `rows` rows; the last may be shorter."""
    import pyarrow as pa

    waiting: list[Any] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            count += part.num_rows
            if count == rows:
                yield pa.Table.from_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


# -- text ---------------------------------------------------------------------------------------------------------


def _text_chunks(path: Path, columns: Sequence[str] | None, kinds: dict[str, str], rows: int) -> Iterator[Table]:
    separator = SEPARATORS[ending_of(path)]
    with naming_file(path):
        names = header_of(path, separator)
        positions = {name: names.index(name) for name in _select_names(names, columns, f"`{path}`")}
        for cells in _rebatched(_cell_batches(path, separator, names), _chunk_size(rows, len(names))):
            table = {
                name: _of_kind(parse_cells(name, cells.column(at), as_text=kinds.get(name) == "text"), kinds.get(name))
                for name, at in positions.items()
            }
            yield checked_table(table, cells.num_rows, f"`{path}`")


def _cell_batches(path: Path, separator: str, names: list[str]) -> Iterator[Any]:
    """Yields the cells below the header as text, one block of the file at a time."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    last, is_header = None, True
    with CheckedText(path) as raw:
        try:
            # without threads, so that error messages name rows
            for batch in arrow_csv.open_csv(raw, *cell_options(separator, len(names), use_threads=False)):
                if batch.num_rows:
                    last = batch.column(len(names) - 1)[-1].as_py()
                    yield batch.slice(1) if is_header else batch
                    is_header = False
        except pa.ArrowInvalid as error:
            raise explain_parse_error(path, names, str(error)) from None
        check_last_cell(path, last, raw.end)


# -- columnar files and Arrow -------------------------------------------------------------------------------------


def _columnar_chunks(path: Path, columns: Sequence[str] | None, kinds: dict[str, str], rows: int) -> Iterator[Table]:
    files = source_files(path)
    types: dict[str, str] = {}
    num_rows = 0
    for file in files:
        for chunk in _file_chunks(file, columns, rows, types, files[0]):
            num_rows += chunk.num_rows
            with naming_file(file):
                yield _table(chunk, f"`{file}`", kinds).select(types)
    checked_table({name: all_missing(0) for name in types}, num_rows, f"`{path}`")


def _file_chunks(
    path: Path, columns: Sequence[str] | None, rows: int, types: dict[str, str], first: Path
) -> Iterator[Any]:
    """Yields Arrow tables of one file of a folder. `types` holds the column types of earlier files, and is updated."""
    with naming_file(path), open_columnar(path) as file:
        names = _names(file.schema, f"`{path}`")
        if types:  # `_check_types` explains how a later file differs from the first
            names = [name for name in names if name in (columns or names)]
        else:
            names = _select_names(names, columns, f"`{path}`")
        _check_types(path, {name: _type_of(file.schema.field(name).type) for name in names}, types, first)
        size = _chunk_size(rows, len(names))
        yield from _rebatched(file.batches(list(types), size), size)


def _names(schema: Any, source: str) -> list[str]:
    """Returns the column names of an Arrow schema, without the index of pandas; raises if one is repeated."""
    import pyarrow as pa

    dummy = pa.table({str(at): [0] for at in range(len(schema.names))}).rename_columns(schema.names)
    return list(table_from_arrow(dummy, source).columns)


def _type_of(kind: Any) -> str:
    import pyarrow as pa

    types = pa.types
    if types.is_null(kind):
        return "missing"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_duration(kind):
        return "duration"
    if types.is_temporal(kind):
        return "date"
    return "number" if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) else "text"


def _check_types(path: Path, found: dict[str, str], types: dict[str, str], first: Path) -> None:
    """Raises if a file's columns differ from those of earlier files in `types`, which it updates."""
    if not types:
        types.update(found)
    if set(found) != set(types):
        other = [name for name in (*found, *types) if (name in found) != (name in types)]
        raise ValueError(
            f"`{path}` must have the columns of `{first.name}`, got a difference in {quoted(other)}. "
            "Write the file again, or move it elsewhere."
        )
    for name, kind in found.items():
        if "missing" in (kind, types[name]):
            types[name] = kind if types[name] == "missing" else types[name]
        elif kind != types[name]:
            raise ValueError(
                f"`{path}` must have columns of the same types as `{first.name}`, got {kind} instead of {types[name]} "
                f"in {quoted([name])}. Write the file again, or move it elsewhere."
            )


def _arrow_chunks(source: Any, columns: Sequence[str] | None, kinds: dict[str, str], rows: int) -> Iterator[Table]:
    import pyarrow as pa

    if hasattr(source, "scanner"):  # a pyarrow dataset is no stream, but can make one
        source = source.scanner().to_reader()
    if not hasattr(source, "__arrow_c_stream__"):
        raise ValueError(
            f"The table must be a file, a folder or an Arrow stream, got {type(source).__name__}. Pass a path."
        )
    reader = pa.RecordBatchReader.from_stream(source)
    names = _select_names(_names(reader.schema, "The table"), columns, "The table")
    num_rows = 0
    try:
        for chunk in _rebatched((batch.select(names) for batch in reader), _chunk_size(rows, len(names))):
            num_rows += chunk.num_rows
            yield _table(chunk, "The table", kinds)
    except (OSError, pa.ArrowException) as error:
        why = shortened(error, 80)
        raise ValueError(f"The table must be readable to its end, got an error: {why}. Check its source.") from None
    checked_table({name: all_missing(0) for name in names}, num_rows, "The table")


def _table(chunk: Any, source: str, kinds: dict[str, str]) -> Table:
    table = table_from_arrow(chunk, source)
    return Table({name: _of_kind(one, kinds.get(name)) for name, one in table.columns.items()}, table.num_rows)


# -- sizes --------------------------------------------------------------------------------------------------------


def estimate_size(path: str | os.PathLike) -> TableSize:
    """Estimates the size of a table in memory from metadata of columnar files, or from the first megabyte of text."""
    path = Path(path).expanduser()
    files = source_files(path)
    if ending_of(files[0]) not in SEPARATORS:
        counts, cells = zip(*map(_count_rows_and_cells, files), strict=True)
        return TableSize(None if None in counts else sum(counts), 8 * sum(cells))
    with naming_file(path):
        num_columns = len(header_of(path, SEPARATORS[ending_of(path)]))
        text, num_bytes = _first_megabyte(path)
    num_lines = max(text.count(b"\n"), 1)
    return TableSize(None, int(8 * num_columns * num_lines * max(num_bytes / max(len(text), 1), 1.0)))


def _count_rows_and_cells(path: Path) -> tuple[int | None, int]:
    """Returns the number of rows of a columnar file (None if not exactly known), and the number of cells."""
    with naming_file(path), open_columnar(path) as file:
        num_rows, is_exact = file.count_rows()
        return num_rows if is_exact else None, num_rows * len(file.schema)


def _first_megabyte(path: Path) -> tuple[bytes, float]:
    """Returns the first megabyte of a text file, unpacked, and an estimate of the bytes of the whole text."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_SAMPLE)
    if not path.name.lower().endswith(".gz"):
        return head, float(size)
    unpacking = zlib.decompressobj(wbits=31)
    try:
        text = unpacking.decompress(head, _SAMPLE)
    except zlib.error as error:
        raise OSError(str(error)) from None
    used = len(head) - len(unpacking.unconsumed_tail) - len(unpacking.unused_data)
    return text, size * len(text) / max(used, 1)
