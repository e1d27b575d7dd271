"""How a function of one chain becomes one of all chains."""

import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def over_chains(function, *stacked: PyTree) -> PyTree:
    """`function` of every chain: one after the other on a CPU, all at once elsewhere.

    On a CPU a batch of chains gains nothing, and batched factorisations can lock up XLA's pool of threads for good
    (seen with jaxlib 0.10.2, two threads, four chains of two layers).
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda at: function(*at), stacked)
    return jax.vmap(function)(*stacked)


class SideBySide:
    """Calls a function of one chain for every chain, in as many threads as there are cores.

    Each chain has its own keys and its own run of the same compiled program, so its draws depend neither on the number
    of threads nor on the other chains.
    """

    def __init__(self, num_threads: int | None = None):
        self._num_threads = num_cores() if num_threads is None else num_threads
        self._seen: set = set()

    def __call__(self, name: Hashable, function: Callable[[int], PyTree], num_chains: int) -> list[PyTree]:
        """`function(chain)` of every chain, in order.

        The first call with a `name` runs one chain ahead of the others: it compiles what they use.
        """
        is_x64 = jnp.result_type(float) == jnp.float64

        def one(chain: int) -> PyTree:
            with jax.enable_x64(is_x64):  # each thread has this setting of its own
                return jax.block_until_ready(function(chain))

        num_ahead = 0 if name in self._seen else 1
        self._seen.add(name)
        ahead = [one(chain) for chain in range(num_ahead)]
        rest = range(num_ahead, num_chains)
        if min(self._num_threads, len(rest)) < 2:
            return [*ahead, *map(one, rest)]
        with ThreadPoolExecutor(min(self._num_threads, len(rest))) as threads:
            return [*ahead, *threads.map(one, rest)]


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
