"""One fit over several devices: chains along one axis of a mesh, the rows of a minibatch along the other.

Every process of a run holds the same state on its host and does the same there; only what is compiled is spread over
the mesh, and its results come back whole. So a run does not depend on the mesh, and a checkpoint neither.
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

from bsgp.processes import LOST_PEER

CHAIN, DATA = "chain", "data"
OF_CHAINS, OF_ROWS, OF_ALL = P(CHAIN), P(CHAIN, None, DATA), P()
"""`[C ...]`, `[C T B ...]`, and what every device has."""
_SHAPE = re.compile(r"(\d+)x(\d+)")


class LostPeerError(RuntimeError):
    """Another process of the run does not answer any more."""


def mesh_shape(text: str) -> tuple[int, int]:
    """`CHAINSxDATA`, such as 4x1 or 2x2, as numbers."""
    match = _SHAPE.fullmatch(text)
    shape = (int(match[1]), int(match[2])) if match else (0, 0)
    if 0 in shape:
        raise ValueError(
            f"`mesh` must be CHAINSxDATA, got {text!r}. Pass 4x1 for four chains on a device each, or 1x4 for the rows "
            "of every minibatch shared out over four."
        )
    return shape


def mean_over(axis: str, tree: PyTree) -> PyTree:
    """The mean of a tree of arrays over an axis of the mesh, in one exchange."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, axis))


class Layout:
    """Where the chains and the rows of a run are, as one process sees it."""

    def __init__(self, shape: tuple[int, int]):
        num_devices, num_processes = shape[0] * shape[1], jax.process_count()
        local = num_devices // num_processes
        if num_devices % num_processes or local > jax.local_device_count():
            raise ValueError(
                f"`mesh` must have {num_devices} devices, as many in each process, got {jax.local_device_count()} in "
                f"each of {num_processes}. Choose another mesh, or, for a CPU, begin with "
                f"`jax.config.update('jax_num_cpu_devices', {-(-num_devices // num_processes)})`."
            )
        if local % shape[1] and shape[1] % local:
            raise ValueError(
                f"`mesh` must give every process whole chains or a share of one, got {shape[0]}x{shape[1]} for "
                f"{num_processes} processes. Let the number of devices of a process divide {shape[1]}, or be a "
                "multiple of it."
            )
        devices = [device for process in range(num_processes) for device in jax.local_devices(process)[:local]]
        self.mesh = Mesh(np.asarray(devices).reshape(shape), (CHAIN, DATA))
        self.num_shares = shape[1]
        first = jax.process_index() * local
        self._local_slots = first // shape[1], -(-local // shape[1])
        self._slots = shape[0]
        self.shares = range(first % shape[1], first % shape[1] + min(local, shape[1]))
        """The shares of every minibatch that this process works on."""

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return jax.process_index() == 0

    def chains_here(self, num_chains: int) -> list[int]:
        """The chains that this process works on. Where some are left out others fill their places, for nothing."""
        each = self._num_places(num_chains) // self._slots
        first, count = self._local_slots
        return [min(place, num_chains - 1) for place in range(first * each, (first + count) * each)]

    def _num_places(self, num_chains: int) -> int:
        """Chains and those that fill up the last places."""
        return -(-num_chains // self._slots) * self._slots

    def check_batch(self, batch_size: int) -> None:
        if batch_size % self.num_shares:
            raise ValueError(
                f"`mesh` must share out minibatches of {batch_size} rows evenly, got {self.num_shares} shares. "
                "Pass 1 in its second place, or a divisor."
            )

    # -- to the devices and back -------------------------------------------------------------------------------

    def put(self, tree: PyTree, spec: P = OF_ALL) -> PyTree:
        """Arrays that every process has, on the mesh."""
        return jax.tree.map(lambda leaf: self._put(leaf, spec), tree)

    def _put(self, leaf: Any, spec: P) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jr.wrap_key_data(self._put(jr.key_data(leaf), spec))
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # there already
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, NamedSharding(self.mesh, spec), lambda at: array[at])

    def put_chains(self, tree: PyTree, num_chains: int, spec: P = OF_CHAINS) -> PyTree:
        """Arrays `[C ...]`; the last chain again where the mesh has more places."""
        places = self._num_places(num_chains)
        padded = np.minimum(np.arange(places), num_chains - 1)
        return self.put(jax.tree.map(lambda leaf: leaf if places == num_chains else leaf[padded], tree), spec)

    def put_rows_here(self, rows: np.ndarray, num_chains: int) -> Array:
        """Rows `[C T B ...]` of this process's chains and shares alone, as part of those of all."""
        shape = (
            self._num_places(num_chains),
            rows.shape[1],
            rows.shape[2] // len(self.shares) * self.num_shares,
            *rows.shape[3:],
        )
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, OF_ROWS), rows, shape)

    def run(
        self, program: Callable, target: Any, plan: Any, carried: PyTree, flags: PyTree, keys: Array, feed: Any
    ) -> PyTree:
        """A program of `bsgp.chunks` on the mesh; what it returns is on this host again, for all chains."""
        num_chains = len(keys)
        rows = jax.tree.map(
            lambda leaf: leaf if _is_on(self.mesh, leaf) else self.put_chains(leaf, num_chains, OF_ROWS), feed.rows
        )
        try:
            done = program(
                self.put(target), plan, self.put_chains(carried, num_chains), self.put(flags),
                self.put_chains(keys, num_chains), feed._replace(rows=rows), self.mesh,
            )  # fmt: skip
            return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:num_chains]), done)
        except Exception as error:
            raise self._explained(error) from error

    # -- between processes -------------------------------------------------------------------------------------

    def agreed(self, value: PyTree) -> PyTree:
        """What the first process says, on all of them; others may pass anything of the same shape."""
        if jax.process_count() == 1:
            return value
        from jax.experimental.multihost_utils import broadcast_one_to_all

        try:
            return broadcast_one_to_all(value)
        except Exception as error:
            raise self._explained(error) from error

    def agreed_bytes(self, content: bytes) -> bytes:
        """Likewise, of any length."""
        length = int(self.agreed(np.asarray(len(content))))
        mine = np.frombuffer(content, np.uint8) if self.is_first else np.zeros(length, np.uint8)
        return np.asarray(self.agreed(mine)).tobytes()

    def _explained(self, error: Exception) -> Exception:
        """XLA has no type of error for a connection that broke."""
        if jax.process_count() > 1 and re.search(r"gloo|UNAVAILABLE|DEADLINE|ABORTED|nccl", str(error), re.IGNORECASE):
            return LostPeerError(LOST_PEER)
        return error


def _is_on(mesh: Mesh, leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
