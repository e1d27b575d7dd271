"""A table converted once to shuffled rows of numbers on disk, from which any rows can be read at once.

A store is a folder: `rows.f32` holds float32 rows, inputs and then targets, in blocks of equal length; `store.json`
says what they mean, and the checksum of every block.
"""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from bsgp.checks import check_count, check_option
from bsgp.data.build_store import DESCRIPTION, FORMAT_NAME, FORMAT_VERSION, ROWS, SourceFiles, StoreBuilder
from bsgp.data.convert import Sizes
from bsgp.data.schema import InputSchema
from bsgp.data.sources import AbstractStream, AbstractStreamedSource, Rows
from bsgp.data.summaries import TargetState
from bsgp.data.table_chunks import CHUNK_ROWS
from bsgp.data.tables import shown

GROUP_BLOCKS = 200
"""A stream shuffles so many blocks together."""


# -- opening ------------------------------------------------------------------------------------------------------


def open_store(
    path: str | os.PathLike,
    *,
    targets: Sequence[str],
    ignore: Sequence[str] = (),
    task: str | None = None,
    cache: Path | None = None,
    say: Callable[[str], None] | None = None,
    sizes: Sizes = Sizes(),
) -> "Store":
    """The store of a table, converted if there is none yet or the table has changed since.

    It is kept in `cache`, else `$BSGP_CACHE/stores`, else `~/.cache/bsgp/stores`. Processes may share it: a store
    appears there whole or not at all. `say` is called with a line now and then.
    """
    if task is not None:
        check_option("task", task, ("regression", "classification"))
    path = Path(os.path.abspath(Path(path).expanduser()))
    source = SourceFiles.of(path)
    asked = {"targets": list(targets), "ignore": sorted(ignore), "task": task}
    key = _sha256(json.dumps([FORMAT_NAME, FORMAT_VERSION, source.marks, source.samples, asked]).encode())
    cache = _cache_folder() if cache is None else Path(cache).expanduser()
    folder = cache / key[:32]
    if os.path.lexists(folder):
        try:
            return Store.open(folder)
        except _OlderFormatError:
            _remove(folder)
    StoreBuilder(source, cache, key, sizes, say or _quiet).build(folder, targets, ignore, task)
    return Store.open(folder)


def _quiet(text: str) -> None:
    """Nobody listens."""


class _OlderFormatError(ValueError):
    """Of an earlier version of this package: to be converted again."""


def _cache_folder() -> Path:
    chosen = os.environ.get("BSGP_CACHE")
    if chosen is None:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bsgp" / "stores"
    return _passing_folder() if chosen in ("", "off", "0") else Path(chosen) / "stores"


@cache
def _passing_folder() -> Path:
    """Where nothing is to be kept, stores live as long as the process."""
    folder = Path(tempfile.mkdtemp(prefix="bsgp-stores-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _remove(folder: Path) -> None:
    """At once for whoever looks for it, though deleting takes its time."""
    aside = folder.with_name(f".{uuid.uuid4().hex}.part")
    try:
        os.rename(folder, aside)
    except OSError:
        return  # another process has done it
    shutil.rmtree(aside, ignore_errors=True)


# -- reading ------------------------------------------------------------------------------------------------------


class Store(AbstractStreamedSource):
    """A converted table: its schema, and its rows in random order as float32."""

    def __init__(self, folder: Path, saved: dict[str, Any]):
        self.folder = folder
        self.num_rows: int = saved["num_rows"]
        self.num_inputs: int = saved["num_inputs"]
        self.num_targets: int = saved["num_targets"]
        self.block_rows: int = saved["block_rows"]
        self.schema = InputSchema.from_json(saved["schema"])
        self.task: str = saved["task"]
        self.target_state = TargetState.from_json(saved["targets"])
        self.notes: list[str] = saved["notes"]
        self.sources: list[str] = saved["sources"]
        self._checksums: list[int] = saved["checksums"]
        self._key: str = saved["key"]
        self._width = self.num_inputs + self.num_targets
        _require(self.schema.width == self.num_inputs, "`num_inputs` must match the schema")
        _require(self.target_state.task == self.task, "`task` must match the targets")
        _require(len(self.target_state.names) == self.num_targets, "`num_targets` must match the targets")
        _require(len(self._checksums) == self.num_blocks, "`checksums` must match the blocks")

    @classmethod
    def open(cls, folder: str | os.PathLike) -> "Store":
        """A store in its folder. Its file names are fixed: nothing in it can point elsewhere."""
        folder = Path(folder)
        saved = _read_description(folder)
        try:
            _check_description(saved)
            store = cls(folder, saved)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _damaged(folder, shown(error, 80)) from None
        store._open_rows()
        return store

    def _open_rows(self) -> None:
        try:
            self._file = os.open(self.folder / ROWS, os.O_RDONLY)
        except OSError as error:
            raise _damaged(self.folder, f"no readable `{ROWS}` ({shown(error.strerror)})") from None
        weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size != 4 * self._width * self.num_rows:
            raise _damaged(self.folder, f"another length of `{ROWS}`")

    @cached_property
    def fingerprint(self) -> str:
        """Of the source, of what was asked for, and of all rows."""
        return _sha256(f"{self._key} {self._checksums}".encode())

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.block_rows)

    def chunks(self, num_rows: int = CHUNK_ROWS) -> Iterator[Rows]:
        """All rows in the order of the store, so many at a time, float32; the last chunk may be shorter."""
        check_count("num_rows", num_rows)
        for start in range(0, self.num_rows, num_rows):
            end = min(start + num_rows, self.num_rows)
            first = start // self.block_rows
            found = self.read_blocks(range(first, -(-end // self.block_rows)))
            yield self._split(found[start - first * self.block_rows : end - first * self.block_rows])

    def some_rows(self, count: int, seed: int) -> Rows:
        """Random rows, each at most once, or all where there are no more.

        They come from as few blocks as possible, which is as good as any choice: the store is in random order.
        """
        count = min(check_count("count", count), self.num_rows)
        rng = np.random.default_rng(check_count("seed", seed, minimum=0))
        order = rng.permutation(self.num_blocks).tolist()
        needed = int(np.searchsorted(list(accumulate(map(self.rows_in, order))), count)) + 1
        rows = self.read_blocks(order[:needed])
        return self._split(rows[rng.permutation(len(rows))[:count]])

    def stream(self, batch_size: int, seed: int, share: tuple[int, int] = (0, 1)) -> "BlockStream":
        """Minibatches without end, or a share of each."""
        return BlockStream(self, batch_size, seed, share)

    def rows_in(self, block: int) -> int:
        return min(self.block_rows, self.num_rows - block * self.block_rows)

    def read_blocks(self, blocks: Sequence[int]) -> np.ndarray:
        """The rows of some blocks, inputs and then targets, once it is sure that they are as they were written."""
        lengths = [self.rows_in(block) for block in blocks]
        rows = np.empty((sum(lengths), self._width), np.float32)
        content = rows.reshape(-1).view(np.uint8).data
        at = 0
        for block, length in zip(blocks, lengths, strict=True):
            size = 4 * self._width * length
            self._read_block(block, content[at : at + size])
            at += size
        return rows

    def _read_block(self, block: int, content: memoryview) -> None:
        start, got = 4 * self._width * self.block_rows * block, 0
        while got < len(content):
            try:
                step = os.preadv(self._file, [content[got:]], start + got)
            except OSError as error:
                raise _damaged(self.folder, shown(error)) from None
            if not step:
                raise _damaged(self.folder, f"a `{ROWS}` that ends too early")
            got += step
        if zlib.crc32(content) != self._checksums[block]:
            raise _damaged(self.folder, f"other bytes in block {block} of `{ROWS}`")

    def _split(self, rows: np.ndarray) -> Rows:
        X, y = rows[:, : self.num_inputs], rows[:, self.num_inputs :]
        return Rows(np.ascontiguousarray(X), np.ascontiguousarray(y))


def _damaged(folder: Path, got: str) -> ValueError:
    return ValueError(f"`{folder}` must be as it was written, got {got}. Delete that folder, and it is made again.")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _read_description(folder: Path) -> dict[str, Any]:
    """What the store says of itself, once it is sure that it is of this version."""
    try:
        saved = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except OSError as error:
        raise _damaged(folder, f"no readable `{DESCRIPTION}` ({shown(error.strerror)})") from None
    except (RecursionError, ValueError):
        raise _damaged(folder, f"a `{DESCRIPTION}` that is no JSON") from None
    version = saved.get("version") if isinstance(saved, dict) and saved.get("format") == FORMAT_NAME else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise _damaged(folder, f"another format of `{DESCRIPTION}`")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"`{folder}` must have a format of at most {FORMAT_VERSION}, got {version}: it was made by a later bsgp. "
            "Install that one, or delete the folder."
        )
    if version < FORMAT_VERSION:
        raise _OlderFormatError(f"`{folder}` must have the format {FORMAT_VERSION}, got {version}. Convert it again.")
    return saved


def _check_description(saved: dict[str, Any]) -> None:
    for name in ("num_rows", "num_inputs", "num_targets", "block_rows"):
        _require(type(saved[name]) is int and 0 < saved[name] < 1 << 48, f"`{name}` must be a positive number")
    checksums = saved["checksums"]
    _require(isinstance(checksums, list) and all(type(one) is int for one in checksums), "`checksums` must be numbers")
    for name in ("notes", "sources"):
        _require(isinstance(saved[name], list) and all(isinstance(one, str) for one in saved[name]), f"odd `{name}`")
    _require(isinstance(saved["task"], str) and isinstance(saved["key"], str), "`task` and `key` must be text")


class BlockStream(AbstractStream):
    """Minibatches without end, in an order that depends on the store, the batch size and the seed alone.

    An epoch shows every row once: its blocks are in random order, and each group of them is shuffled by rows. The rows
    of all epochs are one long stream, of which batch `b` is the rows from `b * batch_size` on.

    A share `(index, count)` is a stream of its own, of `1 / count` of every batch, from a stretch of the store's rows
    that is its alone: since they are in random order, any stretch is as good as any other.
    """

    def __init__(self, store: Store, batch_size: int, seed: int, share: tuple[int, int] = (0, 1)):
        index, count = share
        self.store = store
        self.batch_size = min(check_count("batch_size", batch_size), store.num_rows) // count
        self.seed = check_count("seed", seed, minimum=0)
        self._first, self._last = index * store.num_rows // count, (index + 1) * store.num_rows // count
        self._blocks = range(self._first // store.block_rows, -(-self._last // store.block_rows))
        self._shuffled_by = [self.seed] if count == 1 else [self.seed, index, count]
        self._epoch = -1
        self._group: tuple[int, int] | None = None

    def read(self, first_batch: int, num_batches: int) -> Rows:
        """`X [num_batches B D]` and `y [num_batches B P]`. Any may be asked for; those that follow are quick."""
        check_count("first_batch", first_batch, minimum=0)
        count = check_count("num_batches", num_batches) * self.batch_size
        D, P = self.store.num_inputs, self.store.num_targets
        X, y = np.empty((count, D), np.float32), np.empty((count, P), np.float32)
        done = 0
        while done < count:
            rows = self._rows_from(first_batch * self.batch_size + done)[: count - done]
            X[done : done + len(rows)] = rows[:, :D]
            y[done : done + len(rows)] = rows[:, D:]
            done += len(rows)
        return Rows(X.reshape(num_batches, self.batch_size, D), y.reshape(num_batches, self.batch_size, P))

    def _rows_from(self, position: int) -> np.ndarray:
        """The rows of the stream from a position on, to the end of its group."""
        epoch, at = divmod(position, self._last - self._first)
        if epoch != self._epoch:
            self._start_epoch(epoch)
        group = int(np.searchsorted(self._ends, at, side="right"))
        if self._group != (epoch, group):
            self._read_group(epoch, group)
        return self._rows[at - (self._ends[group - 1] if group else 0) :]

    def _start_epoch(self, epoch: int) -> None:
        order = np.random.default_rng([*self._shuffled_by, epoch]).permutation(self._blocks).tolist()
        self._groups = [order[at : at + GROUP_BLOCKS] for at in range(0, len(order), GROUP_BLOCKS)]
        self._ends = list(accumulate(sum(len(self._rows_of(block)) for block in group) for group in self._groups))
        self._epoch = epoch

    def _read_group(self, epoch: int, group: int) -> None:
        self._group = None  # an error must not leave half of it
        rows = self._read_own(self._groups[group])
        self._rows = rows[np.random.default_rng([*self._shuffled_by, epoch, group + 1]).permutation(len(rows))]
        self._group = (epoch, group)

    def _rows_of(self, block: int) -> range:
        """The rows of a block, numbered within the store, that belong to this share."""
        start = block * self.store.block_rows
        return range(max(start, self._first), min(start + self.store.rows_in(block), self._last))

    def _read_own(self, blocks: list[int]) -> np.ndarray:
        rows = self.store.read_blocks(blocks)
        if all(len(self._rows_of(block)) == self.store.rows_in(block) for block in blocks):
            return rows
        starts = np.cumsum([0, *(self.store.rows_in(block) for block in blocks)])
        own = [
            start + np.asarray(self._rows_of(block)) - block * self.store.block_rows
            for start, block in zip(starts, blocks, strict=False)
        ]
        return rows[np.concatenate(own)]
