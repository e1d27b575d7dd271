"""One fit on several devices: chains along one axis of a mesh, the rows of a minibatch along the other.

Every process of a run holds the same state on its host and does the same work there. Only compiled programs are
distributed over the mesh, and every process receives their complete results. Hence neither a run nor its checkpoints
depend on the mesh.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PyTree

from bsgp.runtime.errors import LostPeerError
from bsgp.runtime.processes import LOST_PEER

CHAIN, DATA = "chain", "data"
BY_CHAIN, BY_CHAIN_AND_ROW, REPLICATED = P(CHAIN), P(CHAIN, None, DATA), P()
"""Partitions of arrays over the mesh: `[C ...]`, `[C T B ...]`, and a copy on every device."""
_SHAPE = re.compile(r"(\d+)x(\d+)")


def mesh_shape(text: str) -> tuple[int, int]:
    """Parses `CHAINSxDATA`, such as 4x1 or 2x2."""
    match = _SHAPE.fullmatch(text)
    shape = (int(match[1]), int(match[2])) if match else (0, 0)
    if 0 in shape:
        raise ValueError(
            f"`mesh` must be CHAINSxDATA, got {text!r}. Pass 4x1 for four chains on one device each, or 1x4 to split "
            "the rows of every minibatch over four devices."
        )
    return shape


def mean_over(axis: str, tree: PyTree) -> PyTree:
    """Averages a tree of arrays over an axis of the mesh, in a single collective operation."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, axis))


class Layout:
    """Placement of a run's chains and rows on the mesh, as seen by one process."""

    def __init__(self, shape: tuple[int, int]):
        num_devices, num_processes = shape[0] * shape[1], jax.process_count()
        local = num_devices // num_processes
        if num_devices % num_processes or local > jax.local_device_count():
            raise ValueError(
                f"`mesh` must have {num_devices} devices, the same number in each process, got "
                f"{jax.local_device_count()} in each of {num_processes}. Choose another mesh, or, on a CPU, start with "
                f"`jax.config.update('jax_num_cpu_devices', {-(-num_devices // num_processes)})`."
            )
        if local % shape[1] and shape[1] % local:
            raise ValueError(
                f"`mesh` must give every process whole chains or a part of one chain, got {shape[0]}x{shape[1]} for "
                f"{num_processes} processes. The number of devices per process must divide {shape[1]} or be a multiple "
                "of it."
            )
        devices = [device for process in range(num_processes) for device in jax.local_devices(process)[:local]]
        self.mesh = Mesh(np.asarray(devices).reshape(shape), (CHAIN, DATA))
        self.num_shards = shape[1]
        """Number of parts that every minibatch is split into."""
        self._num_slots = shape[0]  # positions along the chain axis; each runs the same number of chains
        first = jax.process_index() * local
        self._first_local_slot, self._num_local_slots = first // shape[1], -(-local // shape[1])
        self.local_shards = range(first % shape[1], first % shape[1] + min(local, shape[1]))
        """Indices of the shards that the devices of this process work on."""

    @property
    def is_first(self) -> bool:
        """Whether this process is process 0, which writes all files."""
        return jax.process_index() == 0

    def local_chains(self, num_chains: int) -> list[int]:
        """Chains that this process works on. Copies of the last chain fill the positions that have none."""
        each = self._padded(num_chains) // self._num_slots
        first = self._first_local_slot
        return [min(index, num_chains - 1) for index in range(first * each, (first + self._num_local_slots) * each)]

    def _padded(self, num_chains: int) -> int:
        """The number of chains, rounded up to a multiple of the mesh's chain axis."""
        return -(-num_chains // self._num_slots) * self._num_slots

    def check_batch(self, batch_size: int) -> None:
        """Raises a `ValueError` if minibatches of this size cannot be split evenly."""
        if batch_size % self.num_shards:
            raise ValueError(
                f"`mesh` must split minibatches of {batch_size} rows evenly, got {self.num_shards} parts. "
                f"Pass a second number that divides {batch_size}, such as 1."
            )

    # -- transfer to the devices and back ----------------------------------------------------------------------

    def put(self, tree: PyTree, spec: P = REPLICATED) -> PyTree:
        """Places arrays on the mesh; every process must hold all of their values."""
        return jax.tree.map(lambda leaf: self._put(leaf, spec), tree)

    def _put(self, leaf: Any, spec: P) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jr.wrap_key_data(self._put(jr.key_data(leaf), spec))
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # already on the mesh
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, NamedSharding(self.mesh, spec), lambda at: array[at])

    def put_chains(self, tree: PyTree, num_chains: int, spec: P = BY_CHAIN) -> PyTree:
        """Places arrays `[C ...]` on the mesh, padded with copies of the last chain."""
        num_padded = self._padded(num_chains)
        padded = np.minimum(np.arange(num_padded), num_chains - 1)
        return self.put(jax.tree.map(lambda leaf: leaf if num_padded == num_chains else leaf[padded], tree), spec)

    def put_local_rows(self, rows: np.ndarray, num_chains: int) -> Array:
        """Assembles a global array from the rows `[C T B ...]` of each process's own chains and shards."""
        shape = (
            self._padded(num_chains),
            rows.shape[1],
            rows.shape[2] // len(self.local_shards) * self.num_shards,
            *rows.shape[3:],
        )
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, BY_CHAIN_AND_ROW), rows, shape)

    def run(
        self, program: Callable, target: Any, plan: Any, carried: PyTree, flags: PyTree, keys: Array, feed: Any
    ) -> PyTree:
        """Runs a program of `bsgp.inference.programs` on the mesh; returns its results for all chains to this host."""
        num_chains = len(keys)
        rows = jax.tree.map(
            lambda leaf: leaf if _is_on(self.mesh, leaf) else self.put_chains(leaf, num_chains, BY_CHAIN_AND_ROW),
            feed.rows,
        )
        try:
            done = program(
                self.put(target), plan, self.put_chains(carried, num_chains), self.put(flags),
                self.put_chains(keys, num_chains), feed._replace(rows=rows), self.mesh,
            )  # fmt: skip
            return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:num_chains]), done)
        except Exception as error:
            raise _as_lost_peer(error) from error

    # -- communication between processes -----------------------------------------------------------------------

    def broadcast_from_first(self, value: np.ndarray) -> np.ndarray:
        """Process 0's `value`, in every process; the others pass an array of the same shape and type."""
        if jax.process_count() == 1:
            return value
        devices = [jax.local_devices(process)[0] for process in range(jax.process_count())]
        mesh = Mesh(np.asarray(devices), ("process",))
        try:
            stacked = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), value[None])
            return np.asarray(jax.jit(lambda x: x[0], out_shardings=NamedSharding(mesh, P()))(stacked))
        except Exception as error:
            raise _as_lost_peer(error) from error

    def broadcast_bytes_from_first(self, content: bytes) -> bytes:
        """Process 0's `content`, in every process; what the others pass is ignored."""
        length = int(self.broadcast_from_first(np.asarray(len(content))))
        mine = np.frombuffer(content, np.uint8) if self.is_first else np.zeros(length, np.uint8)
        return self.broadcast_from_first(mine).tobytes()


def _as_lost_peer(error: Exception) -> Exception:
    """A `LostPeerError` if a connection broke, else the error itself. XLA has no type of error for it, only text."""
    if jax.process_count() > 1 and re.search(r"gloo|UNAVAILABLE|DEADLINE|ABORTED|nccl", str(error), re.IGNORECASE):
        return LostPeerError(LOST_PEER)
    return error


def _is_on(mesh: Mesh, leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
