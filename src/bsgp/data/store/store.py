"""Stores: tables converted once to shuffled rows of numbers on disk, of which any block can be read directly.

A store is a folder. `rows.f32` holds float32 rows in blocks of equal length: inputs, targets and, if rows have weights,
the weight. `store.json` holds their schema and the checksum of every block.
"""

import atexit
import hashlib
import json
import math
import os
import shutil
import tempfile
import uuid
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from bsgp.data.encoding.checks import require
from bsgp.data.encoding.schema import InputSchema
from bsgp.data.encoding.target_summary import TargetState
from bsgp.data.store.build import DESCRIPTION, FORMAT_NAME, FORMAT_VERSION, ROWS, SourceFiles, StoreBuilder
from bsgp.data.store.convert import Sizes
from bsgp.data.store.sources import AbstractStream, AbstractStreamedSource, Rows
from bsgp.data.tables.columns import shortened
from bsgp.runtime.checks import check_count, check_option
from bsgp.runtime.files import cache_folder

GROUP_BLOCKS = 200
"""Number of blocks whose rows a stream shuffles together."""


# -- opening ------------------------------------------------------------------------------------------------------


def open_store(
    path: str | os.PathLike,
    *,
    targets: Sequence[str],
    ignore: Sequence[str] = (),
    weights: str | None = None,
    task: str | None = None,
    cache: Path | None = None,
    say: Callable[[str], None] | None = None,
    sizes: Sizes = Sizes(),
) -> "Store":
    """Opens the store of a table; converts the table first if it has no store, or has changed since.

    Stores are kept in `cache`, else in `$BSGP_CACHE/stores`, else in `~/.cache/bsgp/stores`. Processes may share them:
    a store appears when it is complete. `weights` names a column of weights of the rows, which is no input.
    `say` receives progress messages of one line.
    """
    if task is not None:
        check_option("task", task, ("regression", "classification"))
    path = Path(os.path.abspath(Path(path).expanduser()))
    source = SourceFiles.of(path)
    request = {"targets": list(targets), "ignore": sorted(ignore), "task": task}
    if weights is not None:
        request["weights"] = weights
    key = _sha256(json.dumps([FORMAT_NAME, FORMAT_VERSION, source.stats, source.digests, request]).encode())
    cache = (cache_folder("stores") or _temporary_folder()) if cache is None else Path(cache).expanduser()
    folder = cache / key[:32]
    if os.path.lexists(folder):
        try:
            return Store.open(folder)
        except _OlderFormatError:
            _remove(folder)
    StoreBuilder(source, cache, key, sizes, say or _say_nothing).build(folder, targets, ignore, weights, task)
    return Store.open(folder)


def _say_nothing(text: str) -> None:
    """Ignores progress messages."""


class _OlderFormatError(ValueError):
    """The store was written by an earlier version of this package, and must be converted again."""


@cache
def _temporary_folder() -> Path:
    """A folder that is deleted when the process ends, used if caching is switched off."""
    folder = Path(tempfile.mkdtemp(prefix="bsgp-stores-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _remove(folder: Path) -> None:
    """Removes a store. It disappears at once, by a rename, although deleting its files takes a while."""
    aside = folder.with_name(f".{uuid.uuid4().hex}.part")
    try:
        os.rename(folder, aside)
    except OSError:
        return  # another process removed it
    shutil.rmtree(aside, ignore_errors=True)


# -- reading ------------------------------------------------------------------------------------------------------


class Store(AbstractStreamedSource):
    """A converted table: its schema, and its float32 rows in random order."""

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
        self.total_weight = saved.get("total_weight")
        self._width = self.num_inputs + self.num_targets + (self.total_weight is not None)
        require(self.schema.width == self.num_inputs, "`num_inputs` must match the schema")
        require(self.target_state.task == self.task, "`task` must match the targets")
        require(len(self.target_state.names) == self.num_targets, "`num_targets` must match the targets")
        total = self.total_weight
        require(total is None or (isinstance(total, float) and 0 < total < math.inf), "`total_weight` must be positive")
        require(len(self._checksums) == self.num_blocks, "`checksums` must match the blocks")

    @classmethod
    def open(cls, folder: str | os.PathLike) -> "Store":
        """Opens the store in a folder. File names are fixed, so its description cannot point elsewhere."""
        folder = Path(folder)
        saved = _read_description(folder)
        try:
            _check_description(saved)
            store = cls(folder, saved)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _damaged_error(folder, shortened(error, 80)) from None
        store._open_rows()
        return store

    def _open_rows(self) -> None:
        try:
            self._file = os.open(self.folder / ROWS, os.O_RDONLY)
        except OSError as error:
            raise _damaged_error(self.folder, f"no readable `{ROWS}` ({shortened(error.strerror)})") from None
        weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size != 4 * self._width * self.num_rows:
            raise _damaged_error(self.folder, f"`{ROWS}` of another length")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the source, the request and all rows."""
        return _sha256(f"{self._key} {self._checksums}".encode())

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.block_rows)

    def some_rows(self, count: int, seed: int) -> Rows:
        """Returns `count` distinct random rows, or all rows if there are fewer.

        They come from as few blocks as possible. That is still a uniform choice, since the store is in random order.
        """
        count = min(check_count("count", count), self.num_rows)
        rng = np.random.default_rng(check_count("seed", seed, minimum=0))
        order = rng.permutation(self.num_blocks).tolist()
        needed = int(np.searchsorted(list(accumulate(map(self.rows_in, order))), count)) + 1
        rows = self.read_blocks(order[:needed])
        return self._split(rows[rng.permutation(len(rows))[:count]])

    def stream(self, batch_size: int, seed: int, share: tuple[int, int] = (0, 1)) -> "BlockStream":
        """Returns an endless stream of minibatches. A share `(index, count)` holds `1 / count` of every batch."""
        return BlockStream(self, batch_size, seed, share)

    def rows_in(self, block: int) -> int:
        return min(self.block_rows, self.num_rows - block * self.block_rows)

    def read_blocks(self, blocks: Sequence[int]) -> np.ndarray:
        """Returns the rows of some blocks, inputs, targets and weight; raises if their checksums do not match."""
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
                raise _damaged_error(self.folder, shortened(error)) from None
            if not step:
                raise _damaged_error(self.folder, f"`{ROWS}` that ends too early")
            got += step
        if zlib.crc32(content) != self._checksums[block]:
            raise _damaged_error(self.folder, f"other bytes in block {block} of `{ROWS}`")

    def _split(self, rows: np.ndarray) -> Rows:
        end = self.num_inputs + self.num_targets
        X, y = rows[:, : self.num_inputs], rows[:, self.num_inputs : end]
        weight = None if self.total_weight is None else np.ascontiguousarray(rows[:, end])
        return Rows(np.ascontiguousarray(X), np.ascontiguousarray(y), weight)


def _damaged_error(folder: Path, got: str) -> ValueError:
    return ValueError(
        f"`{folder}` must be as it was written, got {got}. Delete that folder; the next run makes it again."
    )


def _read_description(folder: Path) -> dict[str, Any]:
    """Reads a store's description; raises if it belongs to another version."""
    try:
        saved = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except OSError as error:
        raise _damaged_error(folder, f"no readable `{DESCRIPTION}` ({shortened(error.strerror)})") from None
    except (RecursionError, ValueError):
        raise _damaged_error(folder, f"`{DESCRIPTION}` that is no JSON") from None
    version = saved.get("version") if isinstance(saved, dict) and saved.get("format") == FORMAT_NAME else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise _damaged_error(folder, f"`{DESCRIPTION}` in another format")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"`{folder}` must have a format of at most {FORMAT_VERSION}, got {version}: it was made by a later bsgp. "
            "Upgrade bsgp, or delete the folder."
        )
    if version < FORMAT_VERSION:
        raise _OlderFormatError(
            f"`{folder}` must have the format {FORMAT_VERSION}, got {version}. Convert the table again."
        )
    return saved


def _check_description(saved: dict[str, Any]) -> None:
    for name in ("num_rows", "num_inputs", "num_targets", "block_rows"):
        require(type(saved[name]) is int and 0 < saved[name] < 1 << 48, f"`{name}` must be a positive number")
    checksums = saved["checksums"]
    require(isinstance(checksums, list) and all(type(one) is int for one in checksums), "`checksums` must be numbers")
    for name in ("notes", "sources"):
        require(
            isinstance(saved[name], list) and all(isinstance(one, str) for one in saved[name]),
            f"`{name}` must be a list of text",
        )
    require(isinstance(saved["task"], str) and isinstance(saved["key"], str), "`task` and `key` must be text")


class BlockStream(AbstractStream):
    """Endless minibatches. Their order depends only on the store, the batch size, the seed and the share.

    Every epoch visits each row once: it permutes the blocks, and shuffles the rows within groups of `GROUP_BLOCKS`
    blocks. The rows of all epochs form one sequence, in which batch `b` starts at position `b * batch_size`.

    The share `(index, count)` has `1 / count` of every batch. Its rows are a contiguous part of the store that no other
    share reads; since the store is in random order, any part is a random sample.
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
        """Returns `X [num_batches B D]`, `y [num_batches B P]` and weights, if any. Reading in order is fastest."""
        check_count("first_batch", first_batch, minimum=0)
        count = check_count("num_batches", num_batches) * self.batch_size
        D, P = self.store.num_inputs, self.store.num_targets
        X, y = np.empty((count, D), np.float32), np.empty((count, P), np.float32)
        weight = None if self.store.total_weight is None else np.empty(count, np.float32)
        done = 0
        while done < count:
            rows = self._rows_from(first_batch * self.batch_size + done)[: count - done]
            X[done : done + len(rows)] = rows[:, :D]
            y[done : done + len(rows)] = rows[:, D : D + P]
            if weight is not None:
                weight[done : done + len(rows)] = rows[:, -1]
            done += len(rows)
        by_batch = num_batches, self.batch_size
        weight = None if weight is None else weight.reshape(by_batch)
        return Rows(X.reshape(*by_batch, D), y.reshape(*by_batch, P), weight)

    def _rows_from(self, position: int) -> np.ndarray:
        """Returns the rows from a position of the sequence to the end of its group."""
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
        self._group = None  # in case reading fails
        rows = self._read_own(self._groups[group])
        self._rows = rows[np.random.default_rng([*self._shuffled_by, epoch, group + 1]).permutation(len(rows))]
        self._group = (epoch, group)

    def _rows_of(self, block: int) -> range:
        """Returns the rows of a block that belong to this share, as positions in the store."""
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
