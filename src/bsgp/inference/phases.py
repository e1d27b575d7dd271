"""The phases of an SGHMC run on the host: warm start, burn-in and draws.

A chain that fails in a chunk repeats it with a shorter step, and is dropped if that does not help.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.data.store.sources import AbstractStreamedSource
from bsgp.inference.batches import ChunkInputs, minibatch_seeds, open_batches
from bsgp.inference.checkpoints import Checkpoints, Snapshot
from bsgp.inference.events import Dropped, SetBack
from bsgp.inference.fisher_mass import updates_between_axes
from bsgp.inference.guard import (
    RUNAWAY,
    RUNAWAY_ADAPTING,
    Fault,
    faults,
    hot_chains,
    moving_chains,
    temperature_error,
)
from bsgp.inference.history import History, Report
from bsgp.inference.host_loop import Clock, HostLoop, even_chunk
from bsgp.inference.programs import Chain, adam_chunk, init_chains, renew_axes_of_chains, sample_chunk, start_optimiser
from bsgp.inference.run_state import RunState
from bsgp.inference.saved_run import SavedRun
from bsgp.inference.sghmc import Info
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.starts import scattered_starts
from bsgp.inference.step_size import (
    HEAT_LIMIT,
    ROUGH_HEAT_LIMIT,
    calmer,
    longest_allowed,
    rescaled,
    settled_factor,
    suggested_factor,
)
from bsgp.inference.target import Target
from bsgp.models.batch import Batch
from bsgp.runtime.errors import DivergenceError
from bsgp.runtime.mesh import Layout

PAPER_ITERATION = 21
"""Updates of the authors' rhythm (docs/method.md): one that adapts, then ten pairs of which the first adapts."""
TIME_SHARES = {"warm start": 0.2, "burn-in": 0.6, "draws": 1.0}
"""Shares of a time limit at which the phases must be over."""
MASS_ENDS, STEP_SIZE_ENDS = 0.5, 0.75
"""Shares of burn-in after which the mass, and then the step size, is kept."""
MAX_SET_BACK = 5  # times per chain during the draws

logger = logging.getLogger("bsgp")


class Retries(NamedTuple):
    """How often a failing chunk is repeated, and by which factor the step shrinks each time."""

    count: int
    shrink: float


RETRIES = Retries(4, 0.5)
ADAPTING_RETRIES = Retries(8, 0.25)  # the step size is adapted again afterwards


class SghmcRun:
    """One run of chains on the host."""

    def __init__(
        self,
        target: Target,
        data: Batch | AbstractStreamedSource,
        key: Array,
        plan: Plan,
        num_chains: int,
        report: Report,
        checkpoints: Checkpoints | None,
        layout: Layout | None,
    ):
        start_key, batch_key, run_key = jr.split(key, 3)
        self.target, self.plan, self.layout = target, plan, layout
        positions = scattered_starts(target, start_key, num_chains, plan.start_spread)
        adam = jax.vmap(start_optimiser(plan).init)(positions)
        self.state = RunState(run_key, positions, adam, init_chains(target, plan, positions))
        agreed = bool if layout is None else lambda flag: bool(layout.broadcast_from_first(np.asarray(flag)))
        self.loop = HostLoop(report, Clock(plan.max_seconds), self.state.energy, agreed)
        self.saved = None if checkpoints is None else SavedRun(checkpoints, layout)
        self.learning_rate = plan.learning_rate
        # last, since it holds files open and what is above may refuse the plan
        self.batches = open_batches(data, plan.batch_size, minibatch_seeds(batch_key, num_chains), layout)

    def run(self, chains: Chain | None) -> None:
        """Go through the phases, or only draw from where `chains` are; a checkpoint is resumed if there is one."""
        phase = "warm start" if chains is None else "draws"
        if chains is not None:
            self.state.chains = chains
        snapshot = None if self.saved is None else self.saved.load()
        if self.saved is not None and snapshot is not None:
            phase = self._resume(self.saved, snapshot)
        with self.loop.stoppable(lambda: bool(self.state.draws)):
            if phase == "warm start":
                self._optimise_start()
            if phase != "draws":
                self._burn_in()
            self._draw()

    @property
    def history(self) -> History:
        state, temperature = self.state, self.state.temperature
        error = temperature_error(state.leaf_sizes, state.energy.done("draws"), self.plan.friction)
        dropped = [one for one in state.failures if isinstance(one, Dropped)]
        set_back = [one for one in state.failures if isinstance(one, SetBack)]
        suspects = [*hot_chains(temperature, error), *moving_chains(state.energy.by_phase["draws"])]
        return History(
            energy=state.energy.by_phase,
            evaluations=state.evaluations,
            seconds=self.loop.clock.seconds,
            interrupted=self.loop.interrupted,
            events=(*dropped, *set_back, *(one.of_chain(state.numbers[one.chain]) for one in suspects)),
            temperature=temperature,
            step_sizes=tuple(state.step_sizes),
        )

    # -- phases ------------------------------------------------------------------------------------------------

    def _optimise_start(self) -> None:
        total = self.plan.adam_steps
        for size in self._chunks("warm start", total, even_chunk(total, self.plan.chunk)):
            keys, inputs = self._inputs(size)
            for attempt in range(RETRIES.count + 1):
                plan = replace(self.plan, learning_rate=self.learning_rate)
                carried = self.state.positions, self.state.adam
                positions, adam, energy = self._run(adam_chunk, plan, carried, (), jr.clone(keys), inputs)
                energy = np.where(_finite_chains(positions)[:, None], np.asarray(energy), np.nan)
                found = faults(energy, {}, {}, np.inf)
                if not found or attempt == RETRIES.count:
                    break
                self._set_back("warm start", found, "a lower learning rate")
                self.learning_rate *= ADAPTING_RETRIES.shrink
            self.state.positions, self.state.adam = positions, adam
            energy = self._drop("warm start", found, energy)
            self.state.energy.record("warm start", energy / self.target.num_counted)
        self.state.chains = init_chains(self.target, self.plan, self.state.positions)

    def _burn_in(self) -> None:
        """Half for the mass, a quarter for the step size, and a quarter with both kept as they will be in the draws.

        A mass that follows the gradient lingers where it is large, and momenta lag behind it and look hot: the
        temperature is worth a close look only once the mass is kept.
        """
        adapts_step = self.plan.step_size is None
        wanted, chunk, energy = self.plan.burn_in, self._chunk_size, self.state.energy
        total = max(1, round(wanted / chunk)) * chunk if wanted else 0
        settled = not (adapts_step and total) or energy.done("burn-in") / total >= STEP_SIZE_ENDS
        for size in self._chunks("burn-in", total, chunk):
            progress = energy.done("burn-in") / total
            info = self._burn_chunk(size, adapts_mass=progress < MASS_ENDS)
            if progress < MASS_ENDS:
                self._renew_axes(size)
            if adapts_step and progress < STEP_SIZE_ENDS:
                limit = ROUGH_HEAT_LIMIT if progress < MASS_ENDS else HEAT_LIMIT
                sizes = list(self.state.leaf_sizes.values())
                self._rescale(suggested_factor(info, sizes, self.plan.friction, limit))
                if (progress + size / total) >= STEP_SIZE_ENDS:
                    self._settle_step_size()
                    settled = True
            self._note_step_size()
        if not settled:  # out of time before the step size was
            self._settle_step_size()
            self._note_step_size()

    def _burn_chunk(self, size: int, adapts_mass: bool) -> Info:
        update = self.state.energy.done("burn-in") + np.arange(size)
        optimises = (update + 1) % self.plan.optimise_every == 0
        adapts = np.full(size, adapts_mass)
        if self.plan.adaptation == "paper":
            place = update % PAPER_ITERATION
            adapts = (place == 0) | (place % 2 == 1)
        if jax.tree.leaves(self.state.chains.optimised):
            self.state.evaluations += int(optimises.sum())  # Adam's
        retries = ADAPTING_RETRIES if self.plan.step_size is None else RETRIES
        return self._advance("burn-in", adapts, optimises, retries)[1]

    def _draw(self) -> None:
        for size in self._chunks("draws", self.plan.num_draws * self.plan.thinning, self._chunk_size):
            off = np.zeros(size, bool)
            positions, info = self._advance("draws", off, off, RETRIES)
            self.state.add_draws(positions, np.asarray(info.temperature))

    @property
    def _chunk_size(self) -> int:
        """Updates per chunk of burn-in and draws: whole draws and, if possible, a divisor of all of them."""
        plan = self.plan
        most = max(1, plan.chunk // plan.thinning)
        divisor = max(d for d in range(1, most + 1) if plan.num_draws % d == 0)
        return plan.thinning * (divisor if 2 * divisor > most else most)

    def _chunks(self, phase: str, total: int, chunk: int) -> Iterator[int]:
        """Sizes of the chunks of a phase; checkpoints are saved between them and at the end."""
        for size in self.loop.chunks(phase, total, chunk, share=TIME_SHARES[phase]):
            if self.saved is not None and self.saved.is_due and self.state.energy.done(phase):
                self._save(self.saved, phase)
            yield size
        if self.saved is not None and total:
            self._save(self.saved, phase)

    # -- mass and step size ------------------------------------------------------------------------------------

    def _renew_axes(self, size: int) -> None:
        """Give the chains new axes of the Fisher mass if the last `size` updates completed a period."""
        noise, done = self.state.chains.sampler.gradient_noise, self.state.energy.done("burn-in")
        if noise is None or noise.axes is None:
            return
        period = updates_between_axes(sum(self.state.leaf_sizes.values()))
        if done // period > (done - size) // period:
            self.state.chains = renew_axes_of_chains(self.state.chains)

    def _rescale(self, factor: np.ndarray) -> None:
        longest = longest_allowed(self.target, self.plan)
        sampler = rescaled(self.state.chains.sampler, factor, self.state.is_noise, longest)
        self.state.chains = self.state.chains._replace(sampler=sampler)

    def _settle_step_size(self) -> None:
        self._rescale(settled_factor(self.state.chains.sampler, self.state.step_sizes))

    def _note_step_size(self) -> None:
        self.state.step_sizes.append(np.asarray(self.state.chains.sampler.step_size))

    # -- chunks and failures -----------------------------------------------------------------------------------

    def _advance(self, phase: str, adapts: np.ndarray, optimises: np.ndarray, retries: Retries) -> tuple[PyTree, Info]:
        """Positions and `Info` of a chunk of updates, which failing chains repeat with a shorter step."""
        start, (keys, inputs) = self.state.chains, self._inputs(adapts.size)
        flags = jnp.asarray(adapts), jnp.asarray(optimises)
        limit = RUNAWAY_ADAPTING if adapts.any() else RUNAWAY
        done = self._run(sample_chunk, self.plan, start, flags, keys, inputs)
        for attempt in range(retries.count + 1):
            found = self._faults(done[2], limit)
            mended = {chain: fault for chain, fault in found.items() if self.state.times_set_back[chain] < MAX_SET_BACK}
            if not mended or attempt == retries.count:
                break
            self._set_back(phase, mended, f"a step {retries.shrink:g} times as long")
            if phase == "draws":
                self.state.times_set_back[list(mended)] += 1
            is_bad = np.isin(np.arange(self.state.num_chains), list(mended))
            start = start._replace(sampler=calmer(start.sampler, is_bad, retries.shrink))
            self.state.evaluations += adapts.size
            again = self._run(sample_chunk, self.plan, start, flags, jr.clone(keys), inputs)
            done = jax.tree.map(partial(_where_chain, is_bad), again, done)
        self.state.chains, positions, info = done
        if phase == "burn-in":  # which is there to cool down
            found = {chain: fault for chain, fault in found.items() if not fault.is_finite}
        positions, info = self._drop(phase, found, (positions, info))
        self.state.energy.record(phase, np.asarray(info.energy) / self.target.num_counted)
        return positions, info

    def _faults(self, info: Info, limit: float) -> dict[int, Fault]:
        sizes = self.state.leaf_sizes
        by_leaf = dict(zip(sizes, np.moveaxis(np.asarray(info.temperature), 2, 0), strict=True))
        error = temperature_error(sizes, info.energy.shape[1], self.plan.friction)
        return faults(np.asarray(info.energy), by_leaf, error, limit)

    def _set_back(self, phase: str, found: dict[int, Fault], remedy: str) -> None:
        for chain, fault in found.items():
            logger.info(str(self.state.note(SetBack, phase, chain, fault, remedy=remedy)))

    def _drop(self, phase: str, found: dict[int, Fault], chunk: PyTree) -> PyTree:
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

    def _run(
        self, program: Callable, plan: Plan, carried: PyTree, flags: PyTree, keys: Array, inputs: ChunkInputs
    ) -> PyTree:
        """Run a compiled chunk on the devices of this run."""
        run = program if self.layout is None else partial(self.layout.run, program)
        return run(self.target, plan, carried, flags, keys, inputs)

    def _inputs(self, size: int) -> tuple[Array, ChunkInputs]:
        """A key for each chain, and the minibatches of its next updates."""
        self.state.evaluations += size
        self.state.key, key = jr.split(self.state.key)
        # in the authors' rhythm two updates share a minibatch
        times = 2 if self.plan.adaptation == "paper" else 1
        return jr.split(key, self.state.num_chains), self.batches.take(size, times=times)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def _save(self, saved: SavedRun, phase: str) -> None:
        facts = {
            "seconds": self.loop.clock.seconds,
            "batches": self.batches.position,
            "learning_rate": self.learning_rate,
        }
        saved.save(self.state, phase, facts)

    def _resume(self, saved: SavedRun, snapshot: Snapshot) -> str:
        """Take over the state of a checkpoint, and return the phase in which it was saved."""
        phase, facts = saved.restore(self.state, snapshot)
        self.learning_rate = facts.learning_rate
        self.batches.keep(self.state.numbers)
        self.batches.skip(facts.batches)
        self.loop.clock.resume_from(facts.seconds)
        logger.warning(f"Resuming from a checkpoint: {self.state.energy.done(phase):,} updates into the {phase}.")
        return phase


def _where_chain(is_bad: np.ndarray, again: Array, before: Array) -> Array:
    return jnp.where(jnp.asarray(is_bad).reshape(-1, *[1] * (again.ndim - 1)), again, before)


def _finite_chains(tree: PyTree) -> np.ndarray:
    """Whether all numbers of each chain are finite."""
    leaves = [np.isfinite(np.asarray(leaf)).reshape(len(leaf), -1).all(axis=1) for leaf in jax.tree.leaves(tree)]
    return np.all(leaves, axis=0)
