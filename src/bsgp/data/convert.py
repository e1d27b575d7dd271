"""A table as shuffled rows of encoded numbers, in two passes and bounded memory.

The first pass learns the schema and throws every row into a random bucket on disk; the second loads one bucket after
the other, shuffles it, encodes it and appends it. So every order of the rows is equally likely, however the source was
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

from bsgp.data.schema import Feature, InputSchema, says_number
from bsgp.data.summaries import TableSummary, TargetState, TargetSummary, joined_kind
from bsgp.data.table_chunks import CHUNK_ROWS, estimate_size, read_chunks, table_columns
from bsgp.data.tables import Column, Table, all_missing, shown
from bsgp.data.targets import targets_of

_MAX_BUCKETS = 128  # files that are open at a time
_PIECE_ROWS = 8192  # encoded at a time: they stay in the processor's cache
_BLOCK_BYTES = 1 << 19
_SAY_SECONDS = 5.0


@dataclass(frozen=True)
class Sizes:
    """How much is read, shuffled and checked at a time."""

    chunk_rows: int = CHUNK_ROWS
    bucket_bytes: int = 48 << 20
    block_rows: int = 1000
    """At most: blocks of wide tables have fewer, so that they stay below half a megabyte."""


@dataclass(frozen=True)
class Conversion:
    """What is known of a table once its rows are written."""

    num_rows: int
    block_rows: int
    checksums: list[int]
    """The CRC-32 of each block."""
    schema: InputSchema
    task: str
    target_state: TargetState
    notes: list[str]


def convert(
    path: Path,
    rows_file: Path,
    *,
    targets: Sequence[str],
    ignore: Sequence[str],
    task: str | None,
    seed: int,
    sizes: Sizes,
    say: Callable[[str], None],
) -> Conversion:
    """Write the rows of a table, inputs and then targets, to `rows_file`; buckets are kept beside it meanwhile."""
    # an empty table checks the names
    nothing = Table({name: all_missing(0) for name in table_columns(path)}, 0).without(ignore)
    names = list(targets_of(nothing, targets)[1].columns)
    rng = np.random.default_rng(seed)
    first = _FirstPass(path, names, list(targets), task, sizes, _Progress(path.name, say))
    buckets = first.run(rows_file.parent, rng)
    schema, notes = first.inputs.schema()
    state = first.targets.state()
    width = schema.width + len(targets)
    block_rows = min(sizes.block_rows, max(1, _BLOCK_BYTES // (4 * width)))
    encode = _Encoder(schema, state, first)
    say(f"Shuffling {path.name}: {first.inputs.num_rows:,} rows of {schema.width} inputs.")
    with rows_file.open("wb") as file:
        blocks = _Blocks(file, block_rows * width * 4)
        for rows in _shuffled(buckets, len(names) + len(targets), rng, sizes):
            blocks.write(encode(rows))
        blocks.finish()
        file.flush()
        os.fsync(file.fileno())
    return Conversion(first.inputs.num_rows, block_rows, blocks.checksums, schema, state.task, state, notes)


class _Progress:
    """Says now and then how far it is."""

    def __init__(self, name: str, say: Callable[[str], None]):
        self._name, self._say = name, say
        self._next = time.monotonic() + _SAY_SECONDS
        say(f"Converting {name} once.")

    def rows(self, count: int) -> None:
        if time.monotonic() >= self._next:
            self._say(f"Converting {self._name} once: {count:,} rows ...")
            self._next = time.monotonic() + _SAY_SECONDS

    def again(self, names: Sequence[str]) -> None:
        self._say(f"Converting {self._name} once: `{shown(names[0])}` turned out to be text, so it starts over.")


class _FirstPass:
    """Summaries of all columns, and all rows in random buckets as float32."""

    def __init__(
        self, path: Path, names: list[str], targets: list[str], task: str | None, sizes: Sizes, progress: _Progress
    ):
        self._path, self._names, self._target_names, self._task = path, names, targets, task
        self._sizes, self._progress = sizes, progress
        self._kinds: dict[str, str] = {}
        self._odd: dict[str, tuple[int, str]] = {}
        self._start_over()

    def _start_over(self) -> None:
        self._seen: dict[str, str] = {}
        self._before = 0
        self.inputs = TableSummary(self._names, odd=self._odd)
        self.targets = TargetSummary(self._target_names, self._task)
        self.packings = [Packing(name) for name in (*self._names, *self._target_names)]

    def run(self, folder: Path, rng: np.random.Generator) -> list[Path]:
        """The buckets. A column of numbers that has text later on makes it start over: once, with all such columns."""
        size = estimate_size(self._path).bytes_in_memory / 2  # float32
        while True:
            with _Buckets(folder, "rows", math.ceil(size / self._sizes.bucket_bytes)) as buckets:
                chunks = self._chunks()
                if self._read(chunks, buckets, rng):
                    return buckets.paths
                self._find_kinds(chunks)
            self._progress.again(list(self._kinds))
            self._start_over()

    def _chunks(self) -> Iterator[Table]:
        names = [*self._names, *self._target_names]
        return read_chunks(self._path, columns=names, kinds=self._kinds, rows=self._sizes.chunk_rows)

    def _read(self, chunks: Iterator[Table], buckets: "_Buckets", rng: np.random.Generator) -> bool:
        """Whether it came to the end without a column that changed its kind."""
        for chunk in chunks:
            if self._changed(chunk):
                return False
            values = [*self.inputs.add(chunk), *self.targets.add(chunk)]
            packed = np.empty((chunk.num_rows, len(values)), np.float32)
            for at, (packing, one) in enumerate(zip(self.packings, values, strict=True)):
                packed[:, at] = packing.pack(one)
            buckets.scatter(packed, rng)
            self._progress.rows(self.inputs.num_rows)
        return True

    def _find_kinds(self, chunks: Iterator[Table]) -> None:
        """Read on for the kinds alone, so that one new start is enough."""
        for chunk in chunks:
            self._changed(chunk)

    def _changed(self, chunk: Table) -> bool:
        """Whether a column's numbers or truth values turn out to be text, which is remembered in `_kinds`."""
        changed = False
        for name, column in chunk.columns.items():
            if not _has_values(column):
                continue
            before = self._seen.get(name)
            self._seen[name] = joined_kind(before, column.kind)
            if self._seen[name] == "text" and {before, column.kind} & {"number", "boolean"}:
                self._kinds[name] = "text"
                changed = True
                self._find_odd(name, column)
        self._before += chunk.num_rows
        return changed

    def _find_odd(self, name: str, column: Column) -> None:
        """Remember the first word that is no number. Digits with leading zeros are text without such a word."""
        if column.kind == "text" and name not in self._odd:
            for row, value in enumerate(column.values, self._before + 1):
                if value is not None and not says_number(value):
                    self._odd[name] = (row, value)
                    return


def _has_values(column: Column) -> bool:
    if column.values.dtype == object:
        return any(value is not None for value in column.values)
    return not np.isnan(column.values).all()


class Packing:
    """A column of float64 as float32 about its first values, so that timestamps and other offsets keep their digits.

    The median of the first chunk is near the mean of all rows, measured in the spread of all rows; so what float32
    cuts off is small in these units. The scale is a power of two, and only keeps very large and small numbers in range.
    """

    def __init__(self, name: str):
        self._name = name
        self._centre: float | None = None
        self._scale: float | None = None

    def pack(self, values: np.ndarray) -> np.ndarray:
        if self._centre is None:
            there = values[~np.isnan(values)]
            self._centre = float(np.median(there)) if there.size else None
        apart = values - (self._centre or 0.0)
        if self._scale is None:
            largest = float(np.fmax.reduce(np.abs(apart), initial=0.0))
            self._scale = 2.0 ** math.frexp(largest)[1] if largest else None
        with np.errstate(over="ignore"):
            packed = (apart / (self._scale or 1.0)).astype(np.float32)
        if np.isinf(packed).any():
            raise ValueError(
                f"`{shown(self._name)}` must hold numbers of a similar size, got some 1e38 times larger than others. "
                "Take their logarithms, or leave it out with `--ignore`."
            )
        return packed

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        return packed.astype(np.float64) * (self._scale or 1.0) + (self._centre or 0.0)


class _Buckets:
    """Files of float32 rows, which are open while rows are thrown into them at random."""

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
    """The rows of all buckets, some at a time, each bucket in random order; it is deleted as it is read."""
    for path in paths:
        size = path.stat().st_size
        if size > 2 * sizes.bucket_bytes and size > 8 * width:  # there were more rows than expected
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
    """Rows as the first pass left them to rows of the matrix: what `InputSchema.encode` gives, and the targets."""

    def __init__(self, schema: InputSchema, state: TargetState, first: _FirstPass):
        self._width = schema.width + len(state.names)
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
        self._classes = first.targets.codes(state) if state.classes else None
        self._first_target = len(at_of)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        encoded = np.empty((len(rows), self._width), np.float32)
        columns = np.ascontiguousarray(rows.T)
        for at, places, feature, positions in self._inputs:
            values = self._packings[at].unpack(columns[at])
            if positions is not None:
                values = _looked_up(values, positions)
            encoded[:, places] = feature.encode_numbers(values)
        for index in range(len(self._state.names)):
            at = self._first_target + index
            values = self._packings[at].unpack(columns[at])
            if self._classes is not None:
                values = _looked_up(values, self._classes)
            else:
                values = (values - self._state.mean[index]) / self._state.scale[index]
            encoded[:, self._width - len(self._state.names) + index] = values
        return encoded


def _looked_up(codes: np.ndarray, positions: np.ndarray) -> np.ndarray:
    missing = np.isnan(codes)
    return np.where(missing, np.nan, positions[np.where(missing, 0.0, np.rint(codes)).astype(np.int64)])


class _Blocks:
    """Writes bytes in blocks of one length, and keeps the checksum of each."""

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
        """The last block may be shorter."""
        if self._rest:
            self.checksums.append(zlib.crc32(self._rest))
            self._file.write(self._rest)
