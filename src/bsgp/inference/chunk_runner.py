"""Runs chunks of updates of all chains.

A chain that fails in a chunk repeats it with a shorter step, and is dropped if that does not help.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.inference.batches import ChunkInputs, MemoryBatches, StreamedBatches
from bsgp.inference.events import Dropped, SetBack
from bsgp.inference.guard import RUNAWAY, RUNAWAY_ADAPTING, Fault, faults, temperature_error
from bsgp.inference.over_chains import SideBySide
from bsgp.inference.programs import sample_chunk
from bsgp.inference.run_state import RunState
from bsgp.inference.sghmc import Info
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.step_size import calmer
from bsgp.inference.target import Target
from bsgp.runtime.errors import DivergenceError
from bsgp.runtime.mesh import Layout

MAX_SET_BACK = 5  # times per chain during the draws

logger = logging.getLogger("bsgp")


class Retries(NamedTuple):
    """How often a failing chunk is repeated, and by which factor the step shrinks each time."""

    count: int
    shrink: float


RETRIES = Retries(4, 0.5)
ADAPTING_RETRIES = Retries(8, 0.25)  # the step size is adapted again afterwards


class ChunkRunner:
    """Runs compiled chunks on the devices of a run, and keeps its state: chains, failures, energies."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        state: RunState,
        batches: MemoryBatches | StreamedBatches,
        layout: Layout | None,
    ):
        self.target, self.plan, self.state, self.batches, self.layout = target, plan, state, batches, layout
        self.side_by_side = SideBySide(None if layout is None else 1)

    def advance(self, phase: str, adapts: np.ndarray, optimises: np.ndarray, retries: Retries) -> tuple[PyTree, Info]:
        """Positions and `Info` of a chunk of updates, which failing chains repeat with a shorter step."""
        start, (keys, inputs) = self.state.chains, self.inputs(adapts.size)
        flags = jnp.asarray(adapts), jnp.asarray(optimises)
        limit = RUNAWAY_ADAPTING if adapts.any() else RUNAWAY
        done = self.run(sample_chunk, self.plan, start, flags, keys, inputs)
        for attempt in range(retries.count + 1):
            found = self._faults(done[2], limit)
            mended = {chain: fault for chain, fault in found.items() if self.state.times_set_back[chain] < MAX_SET_BACK}
            if not mended or attempt == retries.count:
                break
            self.set_back(phase, mended, f"a step {retries.shrink:g} times as long")
            if phase == "draws":
                self.state.times_set_back[list(mended)] += 1
            is_bad = np.isin(np.arange(self.state.num_chains), list(mended))
            start = start._replace(sampler=calmer(start.sampler, is_bad, retries.shrink))
            self.state.evaluations += adapts.size
            again = self.run(sample_chunk, self.plan, start, flags, jr.clone(keys), inputs)
            done = jax.tree.map(partial(_where_chain, is_bad), again, done)
        self.state.chains, positions, info = done
        if phase == "burn-in":  # which is there to cool down
            found = {chain: fault for chain, fault in found.items() if not fault.is_finite}
        positions, info = self.drop(phase, found, (positions, info))
        self.state.energy.record(phase, np.asarray(info.energy) / self.target.num_counted)
        return positions, info

    def _faults(self, info: Info, limit: float) -> dict[int, Fault]:
        sizes = self.state.leaf_sizes
        by_leaf = dict(zip(sizes, np.moveaxis(np.asarray(info.temperature), 2, 0), strict=True))
        error = temperature_error(sizes, info.energy.shape[1], self.state.friction(self.plan))
        return faults(np.asarray(info.energy), by_leaf, error, limit)

    def set_back(self, phase: str, found: dict[int, Fault], remedy: str) -> None:
        for chain, fault in found.items():
            logger.info(str(self.state.note(SetBack, phase, chain, fault, remedy=remedy)))

    def drop(self, phase: str, found: dict[int, Fault], chunk: PyTree) -> PyTree:
        """Drop the chains that failed however short their step; return what is left of the `chunk`."""
        if not found:
            return chunk
        dropped = [self.state.note(Dropped, phase, chain, fault) for chain, fault in found.items()]
        kept = np.asarray([chain for chain in range(self.state.num_chains) if chain not in found], int)
        if not kept.size:
            assert isinstance(dropped[0], Dropped)  # for the type checker
            raise DivergenceError(dropped[0].as_error, dropped[0])
        logger.warning(str(dropped[-1]))
        self.batches.keep(kept.tolist())
        self.state.keep(kept)
        return jax.tree.map(lambda leaf: leaf[kept], chunk)

    def run(
        self, program: Callable, plan: Plan, carried: PyTree, flags: PyTree, keys: Array, inputs: ChunkInputs
    ) -> PyTree:
        """Run a compiled chunk on the devices of this run: on those of a mesh, or chains side by side on the cores."""
        if self.layout is not None:
            return self.layout.run(program, self.target, plan, carried, flags, keys, inputs)
        if jax.default_backend() != "cpu":
            return program(self.target, plan, carried, flags, keys, inputs)

        key_data = np.asarray(jr.key_data(keys))
        # slices by NumPy: JAX would compile one for every chain and every leaf
        stacked = jax.tree.map(np.asarray, (carried, inputs.rows))

        def one_chain(chain: int) -> PyTree:
            alone = slice(chain, chain + 1)
            of_chain, rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[alone]), stacked)
            key = jr.wrap_key_data(jnp.asarray(key_data[alone]))
            return program(self.target, plan, of_chain, flags, key, inputs._replace(rows=rows))

        size = jax.tree.leaves(inputs.rows)[0].shape[1]
        done = self.side_by_side((program, size), one_chain, len(keys))
        return jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves)), *done)

    def inputs(self, size: int) -> tuple[Array, ChunkInputs]:
        """A key for each chain, and the minibatches of its next updates."""
        self.state.evaluations += size
        self.state.key, key = jr.split(self.state.key)
        # in the authors' rhythm two updates share a minibatch
        times = 2 if self.plan.adaptation == "paper" else 1
        return jr.split(key, self.state.num_chains), self.batches.take(size, times=times)


def _where_chain(is_bad: np.ndarray, again: Array, before: Array) -> Array:
    # by NumPy, for which nothing is compiled
    return jnp.asarray(np.where(is_bad.reshape(-1, *[1] * (again.ndim - 1)), np.asarray(again), np.asarray(before)))
