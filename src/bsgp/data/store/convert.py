"""Converts a table to shuffled rows of encoded numbers, in two passes and bounded memory.

The first pass learns the schema and writes each row to a random bucket on disk; the second loads one bucket at a time,
shuffles it, encodes it and appends it to the result. Every order of the rows is equally likely, however the source is
sorted.
"""

import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from bsgp.data.encoding.checks import OddValue, reads_as_number
from bsgp.data.encoding.feature import Feature
from bsgp.data.encoding.schema import InputSchema
from bsgp.data.encoding.summaries import TableSummary, combined_kind
from bsgp.data.encoding.target_summary import TargetState, TargetSummary
from bsgp.data.encoding.targets import targets_of
from bsgp.data.encoding.weight_columns import left_out_note, weights_in
from bsgp.data.store.packing import Packing
from bsgp.data.tables.chunks import CHUNK_ROWS, estimate_size, read_chunks, table_columns
from bsgp.data.tables.columns import Column, Table, all_missing, shortened

_MAX_BUCKETS = 128  # files that are open at once
_PIECE_ROWS = 8192  # rows encoded at once: they fit in the processor's cache
_BLOCK_BYTES = 1 << 19
_SAY_SECONDS = 5.0


@dataclass(frozen=True)
class Sizes:
    """Rows and bytes that are read, shuffled and checked at once."""

    chunk_rows: int = CHUNK_ROWS
    bucket_bytes: int = 48 << 20
    block_rows: int = 1000
    """Largest number of rows per block. Wide tables have fewer, so that a block stays below half a megabyte."""


@dataclass(frozen=True)
class Conversion:
    """Description of a converted table."""

    num_rows: int
    block_rows: int
    checksums: list[int]
    """CRC-32 of each block."""
    schema: InputSchema
    task: str
    target_state: TargetState
    notes: list[str]
    total_weight: float | None
    """Sum of the weights of all rows; None if they have none."""


def convert(
    path: Path,
    rows_file: Path,
    *,
    targets: Sequence[str],
    ignore: Sequence[str],
    weights: str | None,
    task: str | None,
    seed: int,
    sizes: Sizes,
    say: Callable[[str], None],
) -> Conversion:
    """Writes the rows of a table, inputs, targets and a weight if there are any, to `rows_file`.

    Its folder holds the buckets meanwhile.
    """
    empty = Table({name: all_missing(0) for name in table_columns(path)}, 0)
    inputs = targets_of(empty.without(ignore), targets)[1]  # raises on unknown names
    names = list((inputs if weights is None else inputs.without([weights])).columns)
    rng = np.random.default_rng(seed)
    first = _FirstPass(path, names, list(targets), weights, task, sizes, _Progress(path.name, say))
    buckets = first.run(rows_file.parent, rng)
    schema, notes = first.inputs.schema()
    state = first.targets.state()
    num_packed = len(first.packings) + (weights is not None)
    width = schema.width + num_packed - len(names)
    block_rows = min(sizes.block_rows, max(1, _BLOCK_BYTES // (4 * width)))
    encode = _Encoder(schema, state, first)
    say(f"Shuffling {path.name}: {first.inputs.num_rows:,} rows of {schema.width} inputs.")
    with rows_file.open("wb") as file:
        blocks = _BlockWriter(file, block_rows * width * 4)
        for rows in _shuffled(buckets, num_packed, rng, sizes):
            blocks.write(encode(rows))
        blocks.finish()
        file.flush()
        os.fsync(file.fileno())
    if first.num_left_out:
        notes = [left_out_note(first.num_left_out), *notes]
    total_weight = first.inputs.total_weight
    return Conversion(
        first.inputs.num_rows, block_rows, blocks.checksums, schema, state.task, state, list(notes), total_weight
    )


class _Progress:
    """Reports progress every few seconds."""

    def __init__(self, name: str, say: Callable[[str], None]):
        self._name, self._say = name, say
        self._next = time.monotonic() + _SAY_SECONDS
        say(f"Converting {name} once.")

    def rows(self, count: int) -> None:
        if time.monotonic() >= self._next:
            self._say(f"Converting {self._name} once: {count:,} rows ...")
            self._next = time.monotonic() + _SAY_SECONDS

    def restart(self, name: str) -> None:
        self._say(f"Converting {self._name} once: `{shortened(name)}` turned out to be text, so it starts over.")


class _FirstPass:
    """Summarises all columns, and writes all rows to random buckets as float32."""

    def __init__(
        self,
        path: Path,
        names: list[str],
        targets: list[str],
        weights: str | None,
        task: str | None,
        sizes: Sizes,
        progress: _Progress,
    ):
        self._path, self._names, self._target_names, self._task = path, names, targets, task
        self._weights = weights
        self._sizes, self._progress = sizes, progress
        self._kinds: dict[str, str] = {}
        self._odd: dict[str, OddValue] = {}
        self._start_over()

    def _start_over(self) -> None:
        self._seen: dict[str, str] = {}
        self._before = 0
        self.num_left_out = 0
        """Rows of weight zero."""
        self.inputs = TableSummary(self._names, odd=self._odd)
        self.targets = TargetSummary(self._target_names, self._task, odd=self._odd)
        self.packings = [Packing(name) for name in (*self._names, *self._target_names)]

    def run(self, folder: Path, rng: np.random.Generator) -> list[Path]:
        """Returns the buckets. Starts over, at most once, if columns of numbers turn out to hold text."""
        size = estimate_size(self._path).bytes_in_memory / 2  # float32
        while True:
            with _Buckets(folder, "rows", math.ceil(size / self._sizes.bucket_bytes)) as buckets:
                chunks = self._chunks()
                if self._read(chunks, buckets, rng):
                    return buckets.paths
                self._find_kinds(chunks)
            self._progress.restart(next(iter(self._kinds)))
            self._start_over()

    def _chunks(self) -> Iterator[Table]:
        names = [*self._names, *self._target_names, *([] if self._weights is None else [self._weights])]
        return read_chunks(self._path, columns=names, kinds=self._kinds, rows=self._sizes.chunk_rows)

    def _read(self, chunks: Iterator[Table], buckets: "_Buckets", rng: np.random.Generator) -> bool:
        """Reads all rows. Returns False as soon as a column changes its kind."""
        for chunk in chunks:
            weight = None
            if self._weights is not None:
                chunk, weight = self._without_zeros(chunk, self._weights)
            if self._changed(chunk):
                return False
            if not chunk.num_rows:
                continue
            values = [*self.inputs.add(chunk, weight), *self.targets.add(chunk, weight)]
            packed = np.empty((chunk.num_rows, len(values) + (weight is not None)), np.float32)
            for at, (packing, one) in enumerate(zip(self.packings, values, strict=True)):
                packed[:, at] = packing.pack(one)
            if weight is not None:
                packed[:, -1] = weight
            buckets.scatter(packed, rng)
            self._progress.rows(self.inputs.num_rows)
        if self.inputs.num_rows == 0 and self.num_left_out:
            raise ValueError(
                f"`{self._weights}` must be above zero in some row, got zeros only. Choose another column."
            )
        return True

    def _without_zeros(self, chunk: Table, name: str) -> tuple[Table, np.ndarray]:
        """The rows of a chunk whose weight is not zero, without the column of weights, and their weights."""
        weight = weights_in(chunk, name, self.inputs.num_rows + self.num_left_out)
        weight = weight.astype(np.float32).astype(np.float64)  # as the store holds them
        kept = np.flatnonzero(weight)
        self.num_left_out += len(weight) - len(kept)
        return chunk.without([name]).take(kept), weight[kept]

    def _find_kinds(self, chunks: Iterator[Table]) -> None:
        """Reads the remaining rows for the kinds of their columns, so that one restart is enough."""
        for chunk in chunks:
            self._changed(chunk)

    def _changed(self, chunk: Table) -> bool:
        """Whether a column of numbers or booleans turns out to be text; such columns are added to `_kinds`."""
        changed = False
        for name, column in chunk.columns.items():
            if not _has_values(column):
                continue
            before = self._seen.get(name)
            self._seen[name] = combined_kind(before, column.kind)
            if self._seen[name] == "text" and {before, column.kind} & {"number", "boolean"}:
                self._kinds[name] = "text"
                changed = True
                self._find_odd(name, column)
        self._before += chunk.num_rows
        return changed

    def _find_odd(self, name: str, column: Column) -> None:
        """Remembers the first word that is no number, if any: digits with leading zeros are text without one."""
        if column.kind == "text" and name not in self._odd:
            for row, value in enumerate(column.values, self._before + 1):
                if value is not None and not reads_as_number(value):
                    self._odd[name] = OddValue(row, value)
                    return


def _has_values(column: Column) -> bool:
    if column.values.dtype == object:
        return any(value is not None for value in column.values)
    return not np.isnan(column.values).all()


class _Buckets:
    """Files of float32 rows. In a `with` block, `scatter` appends each row to a random file."""

    def __init__(self, folder: Path, name: str, count: int):
        self.paths = [folder / f"{name}.{at}" for at in range(min(max(count, 1), _MAX_BUCKETS))]
        self._stack = ExitStack()

    def __enter__(self) -> "_Buckets":
        self._files = [self._stack.enter_context(path.open("wb")) for path in self.paths]
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def scatter(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        chosen = rng.integers(0, len(self._files), len(rows), dtype=np.uint8)
        by_bucket = rows[np.argsort(chosen, kind="stable")]
        ends = np.cumsum(np.bincount(chosen, minlength=len(self._files))).tolist()
        for file, start, end in zip(self._files, [0, *ends], ends, strict=False):
            file.write(by_bucket[start:end].data)


def _shuffled(paths: Sequence[Path], width: int, rng: np.random.Generator, sizes: Sizes) -> Iterator[np.ndarray]:
    """Yields the rows of all buckets in pieces, each bucket in random order. Deletes buckets as it reads them."""
    for path in paths:
        size = path.stat().st_size
        if size > 2 * sizes.bucket_bytes and size > 8 * width:  # more rows than expected
            parts = _split(path, width, rng, math.ceil(size / sizes.bucket_bytes))
            yield from _shuffled(parts, width, rng, sizes)
            continue
        rows = np.fromfile(path, np.float32).reshape(-1, width)
        path.unlink()
        order = rng.permutation(len(rows))
        for start in range(0, len(rows), _PIECE_ROWS):
            yield rows[order[start : start + _PIECE_ROWS]]


def _split(path: Path, width: int, rng: np.random.Generator, count: int) -> list[Path]:
    with _Buckets(path.parent, path.name, max(count, 2)) as parts, path.open("rb") as file:
        while (rows := np.fromfile(file, np.float32, _PIECE_ROWS * width)).size:
            parts.scatter(rows.reshape(-1, width), rng)
    path.unlink()
    return parts.paths


class _Encoder:
    """Turns packed rows of the first pass into rows of the store: encoded inputs before encoded targets."""

    def __init__(self, schema: InputSchema, state: TargetState, first: _FirstPass):
        self._num_targets = len(state.names)
        self._target_at = schema.width
        self._inputs: list[tuple[int, slice, Feature, np.ndarray | None]] = []
        self._packings = first.packings
        at_of = {name: at for at, name in enumerate(first.inputs.columns)}
        for feature in schema.features:
            positions = None
            if feature.kind == "category":
                known = first.inputs.columns[feature.name].code_of
                positions = np.array([feature.categories.index(word) for word in known], np.float64)
            self._inputs.append((at_of[feature.name], schema.columns_of(feature.name), feature, positions))
        self._state = state
        self._classes = first.targets.class_positions(state) if state.classes else None
        self._first_target = len(at_of)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        num_weights = rows.shape[1] - self._first_target - self._num_targets
        encoded = np.empty((len(rows), self._target_at + self._num_targets + num_weights), np.float32)
        columns = np.ascontiguousarray(rows.T)
        for at, places, feature, positions in self._inputs:
            values = self._packings[at].unpack(columns[at])
            if positions is not None:
                values = _lookup(values, positions)
            encoded[:, places] = feature.encode_numbers(values)
        for index in range(len(self._state.names)):
            at = self._first_target + index
            values = self._packings[at].unpack(columns[at])
            if self._classes is not None:
                values = _lookup(values, self._classes)
            else:
                values = (values - self._state.mean[index]) / self._state.scale[index]
            encoded[:, self._target_at + index] = values
        if num_weights:
            encoded[:, -1] = columns[-1]
        return encoded


def _lookup(codes: np.ndarray, positions: np.ndarray) -> np.ndarray:
    missing = np.isnan(codes)
    return np.where(missing, np.nan, positions[np.where(missing, 0.0, np.rint(codes)).astype(np.int64)])


class _BlockWriter:
    """Writes bytes in blocks of equal length, and keeps the checksum of each."""

    def __init__(self, file: IO[bytes], block_bytes: int):
        self._file, self._size = file, block_bytes
        self._rest = b""
        self.checksums: list[int] = []

    def write(self, rows: np.ndarray) -> None:
        content = self._rest + rows.tobytes()
        whole = len(content) - len(content) % self._size
        view = memoryview(content)
        self.checksums += [zlib.crc32(view[at : at + self._size]) for at in range(0, whole, self._size)]
        self._file.write(view[:whole])
        self._rest = content[whole:]

    def finish(self) -> None:
        """Writes the last block, which may be shorter."""
        if self._rest:
            self.checksums.append(zlib.crc32(self._rest))
            self._file.write(self._rest)
