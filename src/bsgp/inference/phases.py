"""The phases of an SGHMC run on the host: warm start, burn-in and draws.

Compiled chunks of updates, and chains that fail in them, are left to `ChunkRunner`.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from bsgp.data.store.sources import AbstractStreamedSource
from bsgp.inference.batches import minibatch_seeds, open_batches
from bsgp.inference.checkpoints import Checkpoints, Snapshot
from bsgp.inference.chunk_runner import ADAPTING_RETRIES, RETRIES, ChunkRunner
from bsgp.inference.events import Dropped, SetBack
from bsgp.inference.fisher_mass import updates_between_axes
from bsgp.inference.guard import (
    faults,
    hot_chains,
    moving_chains,
    temperature_error,
)
from bsgp.inference.history import History, Report
from bsgp.inference.host_loop import Clock, HostLoop, even_chunk
from bsgp.inference.lbfgs import Descent, descend
from bsgp.inference.position_mass import add_positions, learned_variance, start_variance, with_variance
from bsgp.inference.programs import Chain, adam_chunk, init_chains, renew_axes_of_chains, start_optimiser
from bsgp.inference.run_state import RunState
from bsgp.inference.saved_run import SavedRun
from bsgp.inference.sghmc import Info
from bsgp.inference.sghmc_plan import Plan
from bsgp.inference.spread_start import drawn_position, start_spreads
from bsgp.inference.starts import scattered_starts
from bsgp.inference.step_size import (
    heat_limit,
    longest_allowed,
    rescaled,
    settled_factor,
    suggested_factor,
)
from bsgp.inference.target import Target
from bsgp.models.batch import Batch
from bsgp.runtime.mesh import Layout

PAPER_ITERATION = 21
"""Updates of the authors' rhythm (docs/method.md): one that adapts, then ten pairs of which the first adapts."""
TIME_SHARES = {"warm start": 0.2, "burn-in": 0.6, "draws": 1.0}
"""Shares of a time limit at which the phases must be over."""
MASS_ENDS, STEP_SIZE_ENDS = 0.5, 0.75
"""Shares of burn-in after which the mass, and then the step size, is kept."""

logger = logging.getLogger("bsgp")


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
        spreads = start_spreads(target.select(positions, "sample"), plan.learns_spread)
        adam = jax.vmap(start_optimiser(plan).init)((positions, spreads))
        self.state = RunState(run_key, positions, spreads, adam, init_chains(target, plan, positions))
        agreed = bool if layout is None else lambda flag: bool(layout.broadcast_from_first(np.asarray(flag)))
        self.loop = HostLoop(report, Clock(plan.max_seconds), self.state.energy, agreed)
        self.saved = None if checkpoints is None else SavedRun(checkpoints, layout)
        self.learning_rate = plan.learning_rate
        self._data = data
        # last, since it holds files open and what is above may refuse the plan
        self.batches = open_batches(data, plan.batch_size, minibatch_seeds(batch_key, num_chains), layout)
        self._chunk_runner = ChunkRunner(target, plan, self.state, self.batches, layout)

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
                self._warm_start()
            if phase != "draws":
                self._burn_in()
            self._draw()

    @property
    def history(self) -> History:
        state, temperature = self.state, self.state.temperature
        error = temperature_error(state.leaf_sizes, state.energy.done("draws"), state.friction(self.plan))
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

    def _warm_start(self) -> None:
        if self.plan.lbfgs_steps:
            self._descend()
        else:
            self._take_adam_steps()
            self._draw_starts()
        self.state.chains = init_chains(self.target, self.plan, self.state.positions)
        if self.plan.adaptation == "position":
            self._set_mass(start_variance(self._one_position))

    def _descend(self) -> None:
        """L-BFGS from the start of every chain: a single chunk, as it takes about a second."""
        data, clock, state = self._data, self.loop.clock, self.state
        if not isinstance(data, Batch) or not self.target.integrates_u:
            raise ValueError(
                "`lbfgs_steps` must go with exact gradients, got minibatches or a u that is not integrated out. "
                "Use `adam_steps`."
            )
        if state.energy.done("warm start"):  # before this run was resumed
            return

        def is_late() -> bool:  # all processes of a mesh must do the same, whatever their clocks say
            return self.layout is None and clock.is_past(TIME_SHARES["warm start"])

        def one_chain(chain: int) -> Descent:
            start = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[chain]), state.positions)
            return descend(self.target, start, data, self.plan.lbfgs_steps, is_late)

        found = self._chunk_runner.side_by_side(descend, one_chain, state.num_chains)
        length = max(len(one.energy) for one in found)
        state.positions = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *(one.position for one in found))
        state.evaluations += max(one.num_evaluations for one in found)
        energy = np.stack([np.pad(one.energy, (0, length - len(one.energy)), mode="edge") for one in found])
        state.energy.record("warm start", energy)
        self.loop.interrupted |= is_late()
        self.loop.report("warm start", length, length, float(energy[:, -1].mean()))
        if self.saved is not None:
            self._save(self.saved, "warm start")

    def _take_adam_steps(self) -> None:
        total = self.plan.adam_steps
        for size in self._chunks("warm start", total, even_chunk(total, self.plan.chunk)):
            keys, inputs = self._chunk_runner.inputs(size)
            for attempt in range(RETRIES.count + 1):
                plan = replace(self.plan, learning_rate=self.learning_rate)
                carried = (self.state.positions, self.state.spreads), self.state.adam
                free, adam, energy = self._chunk_runner.run(adam_chunk, plan, carried, (), jr.clone(keys), inputs)
                energy = np.where(_finite_chains(free)[:, None], np.asarray(energy), np.nan)
                found = faults(energy, {}, {}, np.inf)
                if not found or attempt == RETRIES.count:
                    break
                self._chunk_runner.set_back("warm start", found, "a lower learning rate")
                self.learning_rate *= ADAPTING_RETRIES.shrink
            (self.state.positions, self.state.spreads), self.state.adam = free, adam
            energy = self._chunk_runner.drop("warm start", found, energy)
            self.state.energy.record("warm start", energy / self.target.num_counted)

    def _draw_starts(self) -> None:
        """Start every chain at a draw of u from the Gaussian that the warm start has found, if it has."""
        state = self.state
        if jax.tree.leaves(state.spreads):
            state.key, key = jr.split(state.key)
            keys = jr.split(key, state.num_chains)
            state.positions = jax.vmap(drawn_position)(state.positions, state.spreads, keys)

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
            positions, info = self._burn_chunk(size, adapts_mass=progress < MASS_ENDS)
            if progress < MASS_ENDS:
                self._learn_mass(size, positions)
            if adapts_step and progress < STEP_SIZE_ENDS:
                limit = heat_limit(self.plan, is_rough=progress < MASS_ENDS)
                sizes = list(self.state.leaf_sizes.values())
                self._rescale(suggested_factor(info, sizes, self.state.friction(self.plan), limit))
                if (progress + size / total) >= STEP_SIZE_ENDS:
                    self._settle_step_size()
                    settled = True
            self._note_step_size()
        if not settled:  # out of time before the step size was
            self._settle_step_size()
            self._note_step_size()

    def _burn_chunk(self, size: int, adapts_mass: bool) -> tuple[PyTree, Info]:
        update = self.state.energy.done("burn-in") + np.arange(size)
        optimises = (update + 1) % self.plan.optimise_every == 0
        adapts = np.full(size, adapts_mass)
        if self.plan.adaptation == "paper":
            place = update % PAPER_ITERATION
            adapts = (place == 0) | (place % 2 == 1)
        if jax.tree.leaves(self.state.chains.optimised):
            self.state.evaluations += int(optimises.sum())  # Adam's
        retries = ADAPTING_RETRIES if self.plan.step_size is None else RETRIES
        return self._chunk_runner.advance("burn-in", adapts, optimises, retries)

    def _draw(self) -> None:
        for size in self._chunks("draws", self.plan.num_draws * self.plan.thinning, self._chunk_size):
            off = np.zeros(size, bool)
            positions, info = self._chunk_runner.advance("draws", off, off, RETRIES)
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

    def _learn_mass(self, size: int, positions: PyTree) -> None:
        """Learn from the last `size` updates, between chunks, what the mass of this plan is learned from."""
        if self.plan.adaptation == "position":
            self.state.moments = add_positions(self.state.moments, positions)
            self._set_mass(learned_variance(self.state.moments, self._one_position))
        else:
            self._renew_axes(size)

    @property
    def _one_position(self) -> PyTree:
        """The position of one chain."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.state.chains.sampler.position)

    def _set_mass(self, variance: np.ndarray) -> None:
        sampler = with_variance(self.state.chains.sampler, variance, self.target.num_counted)
        self.state.chains = self.state.chains._replace(sampler=sampler)

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
        self._rescale(settled_factor(self.state.chains.sampler, self.state.step_sizes, self.plan))

    def _note_step_size(self) -> None:
        self.state.step_sizes.append(np.asarray(self.state.chains.sampler.step_size))

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


def _finite_chains(tree: PyTree) -> np.ndarray:
    """Whether all numbers of each chain are finite."""
    leaves = [np.isfinite(np.asarray(leaf)).reshape(len(leaf), -1).all(axis=1) for leaf in jax.tree.leaves(tree)]
    return np.all(leaves, axis=0)
