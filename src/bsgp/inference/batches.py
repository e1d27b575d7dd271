"""Minibatches for the next updates of all chains: row numbers into data in memory, or rows read ahead from disk."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, PyTree

from bsgp.data.store.minibatches import Minibatches
from bsgp.data.store.sources import AbstractSource, AbstractStreamedSource, ArraySource, Rows
from bsgp.models.batch import Batch
from bsgp.runtime.mesh import Layout

MAX_FIRST_ROWS = 20_000
"""Rows of a source on disk that the start of a fit may look at."""


class ChunkInputs(NamedTuple):
    """Minibatches of a chunk: `rows` are row numbers `[C T B]` into `data`, or the rows themselves without `data`."""

    data: Batch | None
    rows: PyTree


def batch_at(data: Batch | None, at: PyTree, dtype: DTypeLike) -> Batch:
    """Minibatch of one update. An empty array of row numbers stands for all rows."""
    if data is None:
        return batch_of(jax.tree.map(lambda rows: rows.astype(dtype), at))
    return data if at.size == 0 else jax.tree.map(lambda rows: rows[at], data)


def batch_of(rows: PyTree) -> Batch:
    """`Rows` of JAX arrays as densities take them."""
    return Batch(rows.X, rows.y, None, rows.weight, rows.known_variance)


class MemoryBatches:
    """Minibatches of data in memory: only row numbers travel to the device."""

    def __init__(self, data: Batch, batch_size: int, seeds: Sequence[int], layout: Layout | None = None):
        num_rows = data.X.shape[0]
        self._data = data if layout is None else layout.put(data)
        self._minibatches = [Minibatches(num_rows, batch_size, seed) for seed in seeds]
        self._sees_all = self._minibatches[0].batch_size == num_rows
        if layout is not None:
            layout.check_batch(self._minibatches[0].batch_size)
        self._is_shared_out = layout is not None and layout.num_shards > 1
        self.position = 0

    def take(self, num_updates: int, times: int = 1) -> ChunkInputs:
        """Minibatches of the next updates, each used for `times` updates in a row."""
        num_batches = -(-num_updates // times)
        self.position += num_batches
        if self._sees_all:
            rows = np.arange(self._minibatches[0].num_rows if self._is_shared_out else 0, dtype=np.int32)
            return ChunkInputs(self._data, jnp.asarray(np.tile(rows, (len(self._minibatches), num_updates, 1))))
        rows = np.stack([each.take(num_batches) for each in self._minibatches])
        return ChunkInputs(self._data, jnp.asarray(_repeated(rows, times, num_updates)))

    def skip(self, num_batches: int) -> None:
        """Skip the minibatches that an earlier process has used."""
        self.position += num_batches
        if not self._sees_all:
            for each in self._minibatches:
                each.skip(num_batches)

    def keep(self, chains: Sequence[int]) -> None:
        self._minibatches = [self._minibatches[chain] for chain in chains]

    def close(self) -> None:
        """Nothing is open."""


class StreamedBatches:
    """Minibatches of rows on disk: the next chunk is read while the chains work on this one.

    On a mesh a process reads only the rows that its own devices work on.
    """

    def __init__(
        self, source: AbstractStreamedSource, batch_size: int, seeds: Sequence[int], layout: Layout | None = None
    ):
        self._source, self._batch_size, self._seeds, self._layout = source, batch_size, list(seeds), layout
        if layout is not None:
            layout.check_batch(min(batch_size, source.num_rows))
        self._open_streams()
        self._reader = ThreadPoolExecutor(1, "bsgp-read-ahead")
        self._ahead: tuple[tuple[int, int], Future] | None = None
        self.position = 0

    def take(self, num_updates: int, times: int = 1) -> ChunkInputs:
        wanted = (self.position, -(-num_updates // times))
        rows = self._ahead[1].result() if self._ahead is not None and self._ahead[0] == wanted else self._read(*wanted)
        self.position += wanted[1]
        following = (self.position, wanted[1])
        self._ahead = (following, self._reader.submit(self._read, *following))
        return ChunkInputs(None, jax.tree.map(lambda x: self._to_devices(_repeated(x, times, num_updates)), rows))

    def _open_streams(self) -> None:
        chains, shares, num_shares = range(len(self._seeds)), range(1), 1
        if self._layout is not None:
            chains, shares = self._layout.local_chains(len(self._seeds)), self._layout.local_shards
            num_shares = self._layout.num_shards
        self._streams = [
            [self._source.stream(self._batch_size, self._seeds[chain], (share, num_shares)) for share in shares]
            for chain in chains
        ]

    def _to_devices(self, rows: np.ndarray) -> Array:
        return jnp.asarray(rows) if self._layout is None else self._layout.put_local_rows(rows, len(self._seeds))

    def _read(self, first: int, count: int) -> Rows:
        """`X [C T B D]`, `y [C T B P]` and so on, of the chains and shares of this process."""
        rows = [_joined([share.read(first, count) for share in chain]) for chain in self._streams]
        return jax.tree.map(lambda *parts: np.stack(parts), *rows)

    def skip(self, num_batches: int) -> None:
        self.position += num_batches

    def keep(self, chains: Sequence[int]) -> None:
        self._drain()
        self._seeds = [self._seeds[chain] for chain in chains]
        self._open_streams()

    def close(self) -> None:
        self._drain()
        self._reader.shutdown()

    def _drain(self) -> None:
        if self._ahead is not None:
            if not self._ahead[1].cancel():
                wait([self._ahead[1]])  # a stream has one buffer, and someone is filling it
            self._ahead = None


def open_batches(
    data: Batch | AbstractStreamedSource, batch_size: int, seeds: Sequence[int], layout: Layout | None = None
) -> MemoryBatches | StreamedBatches:
    """Minibatches of data in memory or on disk, for one chain per seed."""
    if isinstance(data, Batch):
        return MemoryBatches(data, batch_size, seeds, layout)
    return StreamedBatches(data, batch_size, seeds, layout)


def _joined(shares: list[Rows]) -> Rows:
    """Minibatches put together from their shares."""
    if len(shares) == 1:
        return shares[0]
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *shares)


def _repeated(batches: np.ndarray, times: int, num_updates: int) -> np.ndarray:
    return batches if times == 1 else np.repeat(batches, times, axis=1)[:, :num_updates]


def starting_rows(source: AbstractSource, key: Array) -> Rows:
    """Rows for the start of a fit, such as k-means: all rows in memory, or a random sample of those on disk."""
    if isinstance(source, ArraySource):
        return source.rows
    seed = int(jax.random.randint(jax.random.fold_in(key, 0), (), 0, 2**31 - 1))
    rows = source.some_rows(MAX_FIRST_ROWS, seed)
    return jax.tree.map(lambda part: part.astype(jnp.result_type(float)), rows)


def minibatch_seeds(key: Array, num_chains: int) -> list[int]:
    """A seed for the minibatches of each chain."""
    return [int(seed) for seed in np.asarray(jax.random.randint(key, (num_chains,), 0, 2**31 - 1))]
