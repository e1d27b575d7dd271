"""Reads files with typed columns, whole or in batches: Parquet, and Arrow IPC files (Feather) and streams."""

import abc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

PARQUET = (".parquet", ".pq")
IPC = (".arrow", ".arrows", ".feather", ".ipc")
_FILE_MARK, _STREAM_MARK = b"ARROW1", b"\xff\xff\xff\xff"
_MAPPED_BYTES = 1 << 28  # files with larger record batches are memory-mapped, see `_IpcFile`


class AbstractColumnarFile(abc.ABC):
    """An open file with typed columns."""

    schema: Any
    """Arrow schema of the columns."""

    @abc.abstractmethod
    def count_rows(self) -> tuple[int, bool]:
        """Returns the number of rows, and whether it is exact rather than estimated."""

    @abc.abstractmethod
    def read(self) -> Any:
        """Returns the whole file as an Arrow table."""

    @abc.abstractmethod
    def batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """Yields the named columns in record batches of at most `rows` rows."""


@contextmanager
def open_columnar(path: Path) -> Iterator[AbstractColumnarFile]:
    """Opens a file according to its ending. The caller must explain errors of the system and of Arrow."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            raise empty_file_error(path)
        file.seek(0)
        if path.name.lower().endswith(PARQUET):
            yield _ParquetFile(file)
        else:
            yield _IpcFile(path, file.read(len(_FILE_MARK)))


def empty_file_error(path: Path) -> ValueError:
    return ValueError(f"`{path}` must hold a table, got an empty file. Write the file again.")


class _ParquetFile(AbstractColumnarFile):
    def __init__(self, file: Any):
        import pyarrow.parquet as pq

        # not `pq.read_table`, which turns folder names such as `year=2020` into columns;
        # no `pre_buffer`, because a row group may be large
        self._parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        self.schema = self._parquet.schema_arrow

    def count_rows(self) -> tuple[int, bool]:
        return self._parquet.metadata.num_rows, True

    def read(self) -> Any:
        return self._parquet.read()

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        return self._parquet.iter_batches(rows, columns=list(names), use_threads=False)


class _IpcFile(AbstractColumnarFile):
    """An Arrow IPC file or stream. Its record batches can have any size; some programs write all rows as one batch.

    A file of large batches is memory-mapped, so that the system loads and drops pages as needed (compressed batches
    are still unpacked whole). Other files are read: if somebody truncates a mapped file, the system kills the process.
    """

    def __init__(self, path: Path, mark: bytes):
        if not mark.startswith((_FILE_MARK, _STREAM_MARK)):
            got = "Feather of version 1" if mark.startswith(b"FEA1") else "another format"
            raise ValueError(f"`{path}` must be an Arrow IPC file or stream, got {got}. Write it again in that format.")
        self._path = path
        self._is_stream = mark.startswith(_STREAM_MARK)
        with self._open(is_mapped=False) as file:
            self.schema = self._reader(file).schema

    def count_rows(self) -> tuple[int, bool]:
        """Estimates the number of rows from the first batch: only the batches themselves store their length."""
        return round(self._typical_batch.num_rows * self._typical_batch.count), False

    @cached_property
    def _typical_batch(self) -> "_Batch":
        with self._open(is_mapped=True) as file:
            size, reader = file.size(), self._reader(file)
            if self._is_stream:
                first = next(reader, None)
                num_bytes = file.tell()
            else:
                first = reader.get_batch(0) if reader.num_record_batches else None
                num_bytes = size / max(reader.num_record_batches, 1)
            return _Batch(0 if first is None else first.num_rows, num_bytes, size / num_bytes)

    def read(self) -> Any:
        import pyarrow as pa

        return pa.Table.from_batches(map(_checked, self._stored(None)), self.schema)

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        for batch in self._stored(names):
            for start in range(0, batch.num_rows, rows):
                yield _checked(batch.slice(start, rows))

    def _stored(self, names: Sequence[str] | None) -> Iterator[Any]:
        """Yields the batches as they were written, with the named columns or all."""
        fields = [] if names is None else [self.schema.get_field_index(name) for name in names]
        is_mapped = self._typical_batch.num_bytes > _MAPPED_BYTES
        with self._open(is_mapped=is_mapped) as file:
            if is_mapped:  # selecting columns in the reader would copy the whole batch
                stored = self._all_stored(file, self._reader(file))
                yield from stored if names is None else (batch.select(list(names)) for batch in stored)
            else:
                yield from self._all_stored(file, self._reader(file, fields))

    def _all_stored(self, file: Any, reader: Any) -> Iterator[Any]:
        if not self._is_stream:
            yield from map(reader.get_batch, range(reader.num_record_batches))
            return
        while True:
            before = file.tell()
            batch = next(reader, None)
            if batch is None:
                break
            yield batch
        if file.tell() == before:  # no end-of-stream mark: Arrow accepts the end of the file instead
            raise ValueError(
                f"`{self._path}` must be complete, got a stream that was cut off. Copy or download it again."
            )

    def _open(self, *, is_mapped: bool) -> Any:
        import pyarrow as pa

        return pa.memory_map(str(self._path)) if is_mapped else pa.OSFile(str(self._path))

    def _reader(self, file: Any, fields: Sequence[int] = ()) -> Any:
        """Opens a reader of the columns at these positions, or of all columns if there are none."""
        from pyarrow import ipc

        options = ipc.IpcReadOptions(included_fields=list(fields))
        return ipc.open_stream(file, options=options) if self._is_stream else ipc.open_file(file, options=options)


class _Batch(NamedTuple):
    """Typical size of a file's record batches, and their number."""

    num_rows: int
    num_bytes: float
    count: float


def _checked(batch: Any) -> Any:
    """Returns a batch after validating it: invalid offsets of text or categories would crash the process."""
    batch.validate(full=True)
    return batch
